"""The measurements and the conclusions of the demonstration. Pure functions of the figures.

A model is *weak* on a task if its mean sampled reward was below 0.15 before training. The claim to test: over those
tasks, each model's reward is higher after learning together than after learning alone with equally many generated
tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from node.api.losses import LEAST_FALL, SIGMAS, squared_error_of
from node.evaluation.evaluation_result import Evaluation

WEAK_BELOW = 0.15
LostTasks = Sequence[tuple[str, float, float]]  # task, reward before, reward after


class Effort(Struct, frozen=True):
    """The work of one node in one run."""

    rounds: int
    tokens_generated: int
    own_groups: int
    foreign_groups_used: int
    groups_offered: int
    sent_bytes: int  # over the transport, counted by the host
    received_bytes: int


class ModelResult(Struct, frozen=True):
    """One model before training, after learning alone and after learning together. Rewards are means at temperature
    1."""

    model: str
    before: Evaluation
    alone: Evaluation
    together: Evaluation
    effort_alone: Effort
    effort_together: Effort

    def weak_tasks(self) -> list[str]:
        return [task for task, reward in self.before.sampled.items() if reward < WEAK_BELOW]

    def weak_mean(self, evaluation: Evaluation) -> float | None:
        """Returns the mean over the tasks that the model was weak on; None if there was none."""
        weak = self.weak_tasks()
        return sum(evaluation.sampled[task] for task in weak) / len(weak) if weak else None


class DemoReport(Struct, frozen=True):
    """What ``starling demo --json FILE`` writes."""

    minutes: float | None  # that the nodes learnt together; None: bounded by tokens instead
    seed: int
    machine: str
    version: str
    models: tuple[ModelResult, ...]
    weak_means: dict[str, dict[str, float | None]]  # model -> before, alone, together
    # model -> whether its reward on its weak tasks is higher together than alone; None: it had no weak task
    better_together: dict[str, bool | None]


def make_report(
    models: tuple[ModelResult, ...], *, minutes: float | None, seed: int, machine: str, version: str
) -> DemoReport:
    """Computes the means over weak tasks and the conclusions."""
    weak_means = {
        result.model: {
            "before": result.weak_mean(result.before),
            "alone": result.weak_mean(result.alone),
            "together": result.weak_mean(result.together),
        }
        for result in models
    }
    better = {model: _greater(means["together"], means["alone"]) for model, means in weak_means.items()}
    return DemoReport(minutes, seed, machine, version, models, weak_means, better)


def lost_tasks(before: Evaluation, after: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Returns the tasks on which ``after``, sampled rewards by task, is lower than before training by more than noise,
    each with what it was and what it is; the greatest fall first."""
    # Both measurements are on the same prompts, so what differs by chance is the draw of each completion.
    count = max(1, before.prompts * before.samples)
    pairs = [(task, was, after[task]) for task, was in before.sampled.items()]
    return sorted((each for each in pairs if fell_for_certain(*each[1:], count)), key=lambda each: each[2] - each[1])


def fell_for_certain(was: float, now: float, completions: int) -> bool:
    """Whether a mean over ``completions`` fell by ``LEAST_FALL`` and by three times the error of the difference."""
    squared_error = squared_error_of(was, completions) + squared_error_of(now, completions)
    return was - now > max(LEAST_FALL, SIGMAS * math.sqrt(squared_error))


def _greater(left: float | None, right: float | None) -> bool | None:
    return None if left is None or right is None else left > right
