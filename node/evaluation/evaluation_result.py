"""What an evaluation found. Imports no torch, so that who only reads it starts at once."""

from __future__ import annotations

from msgspec import Struct


class Evaluation(Struct, frozen=True):
    """Mean rewards by task, 0 to 1 for most tasks."""

    model: str
    round: int  # rounds trained
    checkpoint: str | None  # None: the model as it came
    prompts: int  # a task
    samples: int  # completions a prompt for ``sampled``
    seed: int
    greedy: dict[str, float]  # one completion a prompt at temperature 0
    sampled: dict[str, float]  # at temperature 1
