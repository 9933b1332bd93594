"""A conversation for tiny models on letters: find the letter, and hear on which side of a guess it is."""

from __future__ import annotations

import random
from dataclasses import dataclass

from node.environments.environment import Turn
from node.tasks.task import check_ref, config_hash_of
from protocol.messages import PromptRef
from tests.node.learner.letter_node import LETTERS

SEEDS = 1000


@dataclass(frozen=True)
class FindLetter:
    name: str = "find"
    version: int = 1
    max_turns: int = 3
    max_new_tokens: int = 2
    max_observation_bytes: int = 8

    @property
    def config_hash(self) -> bytes:
        return config_hash_of({"environment": self.name, "turns": self.max_turns})

    def ref(self, seed: int) -> PromptRef:
        return PromptRef(self.name, self.version, self.config_hash, seed % SEEDS)

    def begin(self, ref: PromptRef) -> Finding:
        check_ref(self, ref, SEEDS)
        return Finding(random.Random(ref.seed))

    def is_canonical(self, action: str) -> bool:
        return action in LETTERS


class Finding:
    def __init__(self, draws: random.Random) -> None:
        self._text = "".join(draws.choices(LETTERS, k=3))
        self._secret, self._found = draws.choice(LETTERS[:3]), False

    def observation(self) -> str:
        return f"{self._text}>"

    def act(self, text: str) -> Turn:
        self._found = text.startswith(self._secret)
        return Turn("f" if text > self._secret else "e", done=self._found)

    def reward(self) -> float:
        return float(self._found)
