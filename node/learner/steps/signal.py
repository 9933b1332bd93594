"""How long a step is, by how much of its batch says something.

    scale = min(1, Σ count · |A| / completions that a round generates)

A is the advantage that the gradient has: that of a foreign group is multiplied by the group's influence already
(``objective.baselines``), so a group with a quarter of its influence adds a quarter.

A completion with A = 0 has no gradient: in a group that is all wrong or all right, or of a peer that does no better
than we do. The loss is divided by all completions, so the gradient is small where few say something; Adam divides that
out again, and would move the weights as far by one group as by thirty-two. The gradient of one group is mostly noise,
and the walk that it makes of many rounds is how a node alone lost what it could (docs/experiments/forgetting.md). So
the learning rate is scaled back, and a batch that peers fill takes whole steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from node.learner.objective.batch import TrainingGroup


def signal_share(groups: Sequence[TrainingGroup], whole_batch: int) -> float:
    """Returns by how much the learning rate of a step on ``groups`` is scaled, 0 to 1; their advantages are those that
    the gradient has. ``whole_batch`` is how many completions a round generates."""
    signal = sum(c.count * abs(c.advantage) for group in groups for c in group.completions)
    return min(1.0, signal / max(1, whole_batch))
