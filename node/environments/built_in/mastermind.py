"""Mastermind: find a code of letters; after each guess the model hears how many stand in the right place, and how many
others occur elsewhere. The reward is 1 for the code, and before that the best guess's share of right places, halved.
"""

from __future__ import annotations

import random
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from node.environments.environment import Turn
from node.tasks.task import check_ref, config_hash_of
from protocol.messages import PromptRef

SEEDS: Final = 1 << 32


@dataclass(frozen=True)
class Mastermind:
    """A code of ``length`` letters out of ``letters``, which are drawn anew in each episode."""

    name: str
    length: int
    letters: int
    max_turns: int
    max_new_tokens: int = 16

    version: ClassVar[int] = 1
    max_observation_bytes: ClassVar[int] = 300

    @property
    def config_hash(self) -> bytes:
        shape = {"environment": "mastermind", "version": self.version, "length": self.length, "letters": self.letters}
        return config_hash_of(shape | {"turns": self.max_turns, "tokens": self.max_new_tokens})

    def ref(self, seed: int) -> PromptRef:
        return PromptRef(self.name, self.version, self.config_hash, seed % SEEDS)

    def begin(self, ref: PromptRef) -> Breaking:
        check_ref(self, ref, SEEDS)
        draws = random.Random(ref.seed)
        letters = "".join(sorted(draws.sample(string.ascii_uppercase, self.letters)))
        return Breaking(self, letters, "".join(draws.choices(letters, k=self.length)))

    def example(self, ref: PromptRef) -> Sequence[str]:
        """Counts each letter, and then knows the code: as a person shows how it goes, in few turns."""
        code = self.begin(ref)
        return [code.letters[0] * self.length, code.secret]

    def is_canonical(self, action: str) -> bool:
        return len(action) == self.length and set(action) <= set(string.ascii_uppercase)


class Breaking:
    def __init__(self, game: Mastermind, letters: str, secret: str) -> None:
        self.game, self.letters, self.secret = game, letters, secret
        self._best = 0

    def observation(self) -> str:
        return (
            f"Find my code of {self.game.length} letters. Each is one of {' '.join(self.letters)}, and may occur "
            "again. Answer with a guess alone."
        )

    def act(self, text: str) -> Turn:
        guess = "".join(text.upper().split())
        if len(guess) != self.game.length or not set(guess) <= set(self.letters):
            return Turn(f"A guess has {self.game.length} letters out of {' '.join(self.letters)}.")
        placed = sum(a == b for a, b in zip(guess, self.secret, strict=True))
        self._best = max(self._best, placed)
        common = (Counter(guess) & Counter(self.secret)).total()
        return Turn(f"{placed} in the right place, {common - placed} elsewhere.", done=placed == self.game.length)

    def reward(self) -> float:
        return 1.0 if self._best == self.game.length else self._best / self.game.length / 2
