"""What a package needs to bring its own reward or task: import from here and from nowhere else in starling.

Names in ``__all__`` keep their meaning within a major version. ``docs/plugins.md`` has a reward and a task in fifteen
lines each.

A reward is a function with TRL's signature (``RewardFunction``), registered in the entry-point group
``starling.rewards`` and used with ``tasks.jsonl_reward = "NAME"``:

    def reward(prompts: Sequence[str], completions: Sequence[str], **columns: Sequence[Any]) -> Sequence[float]

A task (``Task``) makes a ``Prompt`` for each ``PromptRef`` and judges completions of it. The entry-point group
``starling.tasks`` registers a function without arguments that returns the task; ``tasks.names = ["NAME"]`` uses it.

An environment (``Environment``) is a task of many turns: it begins an ``Episode`` for each ``PromptRef``, answers the
model's actions, and gives the reward. It is registered and named as a task is (docs/environments.md).

Rules for all:

- Equal arguments give equal results on every node: peers recompute each other's prompts and rewards, and a claimed
  reward that differs costs its sender reputation. Draw randomness from ``random.Random(ref.seed)`` alone.
- A completion is a stranger's text. Never evaluate it. An exception, a hang or a value that is not finite costs that
  completion its reward and never stops the node (``tasks.scoring_seconds`` is the limit).
- A plug-in runs in the learner and in the scoring workers; keep what it imports small.
"""

from __future__ import annotations

from node.environments.adapters.gym import gym_environment
from node.environments.adapters.tools import tool_environment
from node.environments.environment import Environment, Episode, Turn
from node.environments.seeded import SeededEnvironment
from node.tasks.plugins import RewardFunction
from node.tasks.task import Prompt, Task, check_ref, config_hash_of
from protocol.errors import ConfigurationError, MalformedError
from protocol.messages import PromptRef

__all__ = [
    "ConfigurationError",
    "Environment",
    "Episode",
    "MalformedError",
    "Prompt",
    "PromptRef",
    "RewardFunction",
    "SeededEnvironment",
    "Task",
    "Turn",
    "check_ref",
    "config_hash_of",
    "gym_environment",
    "tool_environment",
]
