"""Guess a number between two bounds; after each guess the model hears whether it is higher or lower.

The reward is 1 for the number within the fewest guesses that always suffice, and less by an equal part for each further
one: a model that halves the range earns 1 each time.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from node.environments.environment import Turn
from node.tasks.task import check_ref, config_hash_of
from protocol.messages import PromptRef

SEEDS: Final = 1 << 32
_NUMBER: Final = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class GuessNumber:
    """``numbers``: how many there are between the bounds, which are drawn from 0 to ``highest``."""

    name: str
    numbers: int
    highest: int
    extra_turns: int = 2
    max_new_tokens: int = 16
    brief: bool = False  # for models of characters: "3-9" instead of a sentence

    version: ClassVar[int] = 1
    max_observation_bytes: ClassVar[int] = 200

    @property
    def enough(self) -> int:
        """The fewest guesses that always suffice."""
        return self.numbers.bit_length()

    @property
    def max_turns(self) -> int:
        return self.enough + self.extra_turns

    @property
    def config_hash(self) -> bytes:
        shape = {"environment": "guess_number", "version": self.version, "numbers": self.numbers}
        shape |= {"highest": self.highest, "extra_turns": self.extra_turns, "tokens": self.max_new_tokens}
        return config_hash_of(shape | {"brief": self.brief})

    def ref(self, seed: int) -> PromptRef:
        return PromptRef(self.name, self.version, self.config_hash, seed % SEEDS)

    def begin(self, ref: PromptRef) -> Guessing:
        check_ref(self, ref, SEEDS)
        draws = random.Random(ref.seed)
        low = draws.randrange(self.highest - self.numbers + 2)
        return Guessing(self, low, draws.randrange(low, low + self.numbers))

    def example(self, ref: PromptRef) -> Sequence[str]:
        """Halves the range each time."""
        episode, guesses = self.begin(ref), list[str]()
        low, high = episode.low, episode.low + self.numbers - 1
        while not guesses or int(guesses[-1]) != episode.secret:
            guesses.append(str((low + high) // 2))
            low, high = (
                (int(guesses[-1]) + 1, high) if int(guesses[-1]) < episode.secret else (low, int(guesses[-1]) - 1)
            )
        return guesses

    def is_canonical(self, action: str) -> bool:
        return _NUMBER.fullmatch(action) is not None and str(int(action)) == action


class Guessing:
    def __init__(self, game: GuessNumber, low: int, secret: int) -> None:
        self.game, self.low, self.secret = game, low, secret
        self._guesses, self._found = 0, False

    def observation(self) -> str:
        high = self.low + self.game.numbers - 1
        if self.game.brief:
            return f"{self.low}-{high}:"
        return f"I think of a whole number from {self.low} to {high}. Guess it: answer with a number alone."

    def act(self, text: str) -> Turn:
        self._guesses += 1
        found = _NUMBER.search(text)
        if found is None:
            return Turn("?" if self.game.brief else "That is no number. Answer with a number alone.")
        self._found = int(found[0]) == self.secret
        if self._found:
            return Turn("=" if self.game.brief else "Yes, that is it.", done=True)
        if int(found[0]) < self.secret:
            return Turn("+" if self.game.brief else "It is higher.")
        return Turn("-" if self.game.brief else "It is lower.")

    def reward(self) -> float:
        if not self._found:
            return 0.0
        late = max(0, self._guesses - self.game.enough)
        return 1.0 - late / (self.game.extra_turns + 1)
