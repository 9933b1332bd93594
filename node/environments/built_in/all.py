"""The environments of the catalogue, from those for tiny models of characters up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from node.environments.built_in.database import Database
from node.environments.built_in.grid import Grid
from node.environments.built_in.guess_number import GuessNumber
from node.environments.built_in.mastermind import Mastermind
from node.environments.conversation import ConversationTask
from node.environments.environment import Environment

_ENVIRONMENTS: Final[Sequence[Environment]] = (
    GuessNumber("guess_number:tiny", numbers=7, highest=99, max_new_tokens=4, brief=True),
    GuessNumber("guess_number", numbers=100, highest=1_000),
    GuessNumber("guess_number:large", numbers=10_000, highest=1_000_000),
    Grid("grid:tiny", size=3, walls=0.2, max_new_tokens=2, brief=True),
    Grid("grid", size=4, walls=0.25),
    Grid("grid:large", size=8, walls=0.3),
    Mastermind("mastermind", length=3, letters=4, max_turns=8),
    Mastermind("mastermind:large", length=5, letters=8, max_turns=12),
    Database("database", people=8, orders=0, max_turns=4),
    Database("database:large", people=16, orders=40, max_turns=6),
)
CONVERSATIONS: Final = tuple(map(ConversationTask, _ENVIRONMENTS))
