"""The sampled success of the nodes of a run on held-out prompts, always the same: of one, of a member by its name, of
all, and which skills fell between two measurements.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Final

from scripts.experiments.harness.plans import NodeHistory, RunResult

LEAST: Final = 0.1  # a task is a skill of a model from this success on


def success(node: NodeHistory, round_number: int) -> float:
    """Returns the mean over all tasks."""
    return statistics.fmean(node.measured(round_number).sampled.values())


def mean_success(result: RunResult, round_number: int) -> float:
    """Returns the mean over all tasks and nodes."""
    return statistics.fmean(success(node, round_number) for node in result.nodes)


def member(result: RunResult, name: str) -> NodeHistory:
    return next(node for node in result.nodes if node.name == name)


def member_success(result: RunResult, name: str, round_number: int) -> float:
    return success(member(result, name), round_number)


def effective_share(node: NodeHistory) -> float:
    """Returns the mean effective sample share of the rounds in which it was known; 0 where it never was."""
    known = [share for share in node.effective_sample_share if share is not None]
    return statistics.fmean(known) if known else 0.0


def at_parting(result: RunResult) -> int:
    """Returns the round after which the nodes were alone; 0 where they always were."""
    return result.plan.parted_after or 0


def end_of(result: RunResult) -> int:
    return result.plan.rounds


def falls(result: RunResult, since: int, until: int) -> dict[tuple[str, str], float]:
    """Returns by how much the success of each (model, skill) is lower at round ``until`` than at ``since``, of those
    that were skills at ``since``; negative where it rose."""
    return {
        (node.name, task): was - node.measured(until).sampled[task]
        for node in result.nodes
        for task, was in node.measured(since).sampled.items()
        if was >= LEAST
    }


def mean_change(result: RunResult, since: int) -> float:
    """Returns the mean change until the end over all models' skills; negative where they fell."""
    return -statistics.fmean(falls(result, since, end_of(result)).values())


def greatest_fall(
    runs: Sequence[RunResult], since: Callable[[RunResult], int], until: Callable[[RunResult], int] = end_of
) -> tuple[float, str]:
    """Returns the greatest fall of any skill in any run, and where."""
    return max(
        (fall, f"{model}, {task}, seed {run.seed}")
        for run in runs
        for (model, task), fall in falls(run, since(run), until(run)).items()
    )


def mean_reward(result: RunResult, rounds: slice) -> float:
    """Returns the mean reward of the own completions of these rounds: the area under its curve."""
    return statistics.fmean(statistics.fmean(node.reward[rounds]) for node in result.nodes)
