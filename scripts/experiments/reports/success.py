"""The sampled success of the nodes of a run on held-out prompts: of one, of a member by its name, of all."""

from __future__ import annotations

import statistics

from scripts.experiments.harness.plans import NodeHistory, RunResult


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
