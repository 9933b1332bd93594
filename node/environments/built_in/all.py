"""The environments of the catalogue, from those for tiny models of characters up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from node.environments.built_in.database import Database
from node.environments.built_in.grid import Grid
from node.environments.built_in.guess_number import GuessNumber
from node.environments.built_in.hidden_word import FIVE, THREE, hidden_word
from node.environments.built_in.mastermind import Mastermind
from node.environments.built_in.sorting_names import sorting_names
from node.environments.built_in.tools import calculator, key_value
from node.environments.conversation import ConversationTask
from node.environments.environment import Environment

_ENVIRONMENTS: Final[Sequence[Environment]] = (
    GuessNumber("guess_number:tiny", numbers=7, highest=999, max_new_tokens=4, brief=True),
    GuessNumber("guess_number", numbers=100, highest=1_000),
    GuessNumber("guess_number:large", numbers=10_000, highest=1_000_000),
    Grid("grid:tiny", size=3, walls=0.2, max_new_tokens=2, brief=True),
    Grid("grid", size=4, walls=0.25),
    Grid("grid:large", size=8, walls=0.3),
    Mastermind("mastermind", length=3, letters=4, max_turns=8),
    Mastermind("mastermind:large", length=5, letters=8, max_turns=12),
    hidden_word("hidden_word:tiny", THREE, max_turns=6, brief=True),
    hidden_word("hidden_word", FIVE, max_turns=8),
    sorting_names("sorting_names:tiny", first=2, more=1, turns=3, brief=True),
    sorting_names("sorting_names", first=4, more=2, turns=3),
    sorting_names("sorting_names:large", first=8, more=4, turns=6),
    calculator("calculator:tiny", digits=2, terms=1, brief=True),
    calculator("calculator", digits=3, terms=1),
    calculator("calculator:large", digits=6, terms=3),
    key_value("key_value:tiny", keys=4, steps=2, brief=True),
    key_value("key_value", keys=8, steps=3),
    key_value("key_value:large", keys=16, steps=5, swaps=True),
    Database("database", people=8, orders=0, max_turns=4),
    Database("database:large", people=16, orders=40, max_turns=6),
)
CONVERSATIONS: Final = tuple(map(ConversationTask, _ENVIRONMENTS))
