"""The result of an evaluation. Imports no torch, so that processes that only read it start fast."""

from __future__ import annotations

from msgspec import Struct

PROGRESS = r"measured (\d+) of (\d+) answers"  # a line on the standard error of ``starling eval``


class Evaluation(Struct, frozen=True):
    """Mean rewards by task, 0 to 1 for most tasks."""

    model: str
    round: int  # rounds trained
    checkpoint: str | None  # None: the original model
    prompts: int  # of each task, at most: a small data set has fewer
    samples: int  # completions per prompt for ``sampled``
    seed: int
    greedy: dict[str, float]  # one completion per prompt at temperature 0
    sampled: dict[str, float]  # at temperature 1


def progress_line(answers: int, in_all: int) -> str:
    """Returns the line that ``PROGRESS`` reads."""
    return f"measured {answers} of {in_all} answers"
