"""The measurements and the conclusions of the demonstration of a family. Pure functions of the figures.

A *family* is a set of nodes with the same policy, which each node trains on prompts of its own. The claims to test:
with equally many generated tokens, the nodes' mean reward is higher after learning together, sharing groups and
averaging weights, than after learning alone; and their weights stay nearer to each other when they learn together.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from msgspec import Struct

from node.demo.member import Tally
from node.demo.plan import Effort
from node.evaluation.evaluation_result import Evaluation

MOMENTS = 6  # stretches into which learning together is divided


class Moment(Struct, frozen=True):
    """One stretch of learning together, over all nodes. A mean is null where the stretch has no value for it."""

    from_seconds: float  # since the first round of any node
    until_seconds: float
    reward: float | None  # mean over rounds
    distance: float | None  # mean ‖θ_i − θ_j‖ / ‖θ_i‖ of partners, before their outer step
    outer_steps: int


class NodeResult(Struct, frozen=True):
    """One node after learning alone and after learning together. Rewards are means at temperature 1."""

    label: str
    alone: Evaluation
    together: Evaluation
    effort_alone: Effort
    effort_together: Effort
    outer_steps: int
    weight_bytes: int  # received from partners


class FamilyReport(Struct, frozen=True):
    """What ``starling demo --family --json FILE`` writes."""

    minutes: float | None  # that the nodes learnt together; None: bounded by tokens instead
    seed: int
    machine: str
    version: str
    model: str
    before: Evaluation  # the same for all nodes
    nodes: tuple[NodeResult, ...]
    moments: tuple[Moment, ...]
    distance_alone: float  # at the end: mean of ‖θ_i − θ_j‖ / ‖θ_i‖ over all ordered pairs
    distance_together: float
    mean_before: float  # over tasks
    mean_alone: float  # over tasks and nodes
    mean_together: float
    better_together: bool


def make_family_report(
    before: Evaluation,
    nodes: tuple[NodeResult, ...],
    moments: tuple[Moment, ...],
    *,
    model: str,
    distances: tuple[float, float],
    minutes: float | None,
    seed: int,
    machine: str,
    version: str,
) -> FamilyReport:
    """Computes the means and the conclusion. ``distances``: alone and together."""
    alone = fmean(mean_reward(node.alone) for node in nodes)
    together = fmean(mean_reward(node.together) for node in nodes)
    return FamilyReport(
        minutes, seed, machine, version, model, before, nodes, moments, *distances,
        mean_reward(before), alone, together, together > alone,
    )  # fmt: skip


def mean_reward(evaluation: Evaluation) -> float:
    """Returns the mean sampled reward over tasks."""
    return fmean(evaluation.sampled.values())


def moments_of(tallies: Sequence[Tally], count: int = MOMENTS) -> tuple[Moment, ...]:
    """Returns ``count`` stretches of equal length, from the first round of any node to the last; none without a
    round."""
    points = [point for tally in tallies for point in tally.rewards]
    if not points:
        return ()
    began = min(point.time_seconds for point in points)
    stretch = (max(point.time_seconds for point in points) - began) / count
    moments = []
    for number in range(count):
        start, end = number * stretch, (number + 1) * stretch
        last = number == count - 1

        def within(time_seconds: float, start: float = start, end: float = end, last: bool = last) -> bool:
            return start <= time_seconds - began and (last or time_seconds - began < end)

        rewards = [point.value for point in points if within(point.time_seconds)]
        steps = [event for tally in tallies for event in tally.averagings if within(event.time_seconds)]
        distances = [event.distance for event in steps if event.distance is not None]
        reward, distance = (fmean(values) if values else None for values in (rewards, distances))
        moments.append(Moment(start, end, reward, distance, len(steps)))
    return tuple(moments)
