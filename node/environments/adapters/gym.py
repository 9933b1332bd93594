"""Environments with gymnasium's ``reset`` and ``step``, which GEM and others have too.

    observation, info = environment.reset(seed=seed)
    observation, reward, terminated, truncated, info = environment.step(action)

The reward of an episode is the sum of its steps', within 0 and 1. An environment is made anew for each episode, and
plays again what it played only if it draws from the seed of ``reset`` alone: the audit looks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from node.environments.environment import Turn
from node.environments.seeded import SeededEnvironment

MOST_SEED = 1 << 31  # some libraries take no more


def gym_environment(
    name: str,
    make: Callable[[], Any],
    *,
    max_turns: int,
    max_new_tokens: int = 64,
    max_observation_bytes: int = 2_000,
    written: Callable[[Any], str] = str,
    read: Callable[[str], Any] = str,
    version: int = 1,
    config: Mapping[str, Any] | None = None,
) -> SeededEnvironment:
    """Returns what ``make`` makes as an environment. ``written`` turns an observation into text, and ``read`` what the
    model writes into an action; it raises ``ValueError`` for what is none, as ``int`` does."""

    def episode(draws: random.Random) -> GymEpisode:
        return GymEpisode(make(), draws.randrange(MOST_SEED), written, read)

    return SeededEnvironment(
        name, episode, max_turns, max_new_tokens, max_observation_bytes, version, {} if config is None else config
    )


class GymEpisode:
    def __init__(self, made: Any, seed: int, written: Callable[[Any], str], read: Callable[[str], Any]) -> None:
        self._made, self._written, self._read = made, written, read
        self._first, _ = made.reset(seed=seed)
        self._earned = 0.0

    def observation(self) -> str:
        return self._written(self._first)

    def act(self, text: str) -> Turn:
        try:
            action = self._read(text)
        except ValueError:
            return Turn("That is no action.")
        observation, reward, terminated, truncated, _ = self._made.step(action)
        self._earned += float(reward)
        return Turn(self._written(observation), done=bool(terminated or truncated))

    def reward(self) -> float:
        return min(max(self._earned, 0.0), 1.0)
