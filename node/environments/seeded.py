"""An environment whose episodes are made of a seed alone: everything but the episode, for those of one's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from node.environments.environment import Episode
from node.tasks.task import check_ref, config_hash_of
from protocol.messages import PromptRef

SEEDS: Final = 1 << 32


@dataclass(frozen=True)
class SeededEnvironment:
    """An ``Environment`` of what ``episode`` makes: an ``Episode`` that draws from the generator it is given, and may
    have a method ``example() -> Sequence[str]``, actions that go well.

    ``config`` has whatever else shapes observations and rewards, as JSON values: the settings of a game, the version of
    a library. It is part of the configuration's hash, as are the name, the version and the bounds.
    """

    name: str
    episode: Callable[[random.Random], Episode]
    max_turns: int
    max_new_tokens: int = 64
    max_observation_bytes: int = 1_000
    version: int = 1
    config: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()  # as ``Environment`` has them
    is_canonical: Callable[[str], bool] | None = None  # likewise

    @property
    def config_hash(self) -> bytes:
        shape = {"environment": self.name, "version": self.version, "turns": self.max_turns}
        shape |= {"tokens": self.max_new_tokens, "bytes": self.max_observation_bytes}
        return config_hash_of({**shape, "config": dict(self.config), "tools": list(self.tools)})

    def ref(self, seed: int) -> PromptRef:
        return PromptRef(self.name, self.version, self.config_hash, seed % SEEDS)

    def begin(self, ref: PromptRef) -> Episode:
        check_ref(self, ref, SEEDS)
        return self.episode(random.Random(ref.seed))

    def example(self, ref: PromptRef) -> Sequence[str] | None:
        example = getattr(self.begin(ref), "example", None)
        return None if example is None else example()
