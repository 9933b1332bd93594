"""What the optimizer step is taken on: groups in the learner's own tokens, with advantages and behaviour spans."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from node.engines.engine import Segment
from node.learner.objective.alignment import Alignment

SELF: Final = "self"  # the peer name of own completions

Baseline = Literal["fixed", "min_variance"]


@dataclass(frozen=True, slots=True, eq=False)
class TrainingCompletion:
    """One completion that has a gradient."""

    token_ids: NDArray[np.int64]  # (T,) in the learner's tokenizer, T >= 1
    alignment: Alignment  # of these T tokens with the generator's
    advantage: float
    peer: str  # who generated it; ``SELF`` for own
    count: int = 1  # how many of the group's completions are exactly this one
    reward: float = 0.0
    as_text: bool = False  # without a behaviour policy: its ratio counts as 1
    segments: tuple[Segment, ...] = ()  # which versions of the policy sampled it; own completions only

    @property
    def foreign(self) -> bool:
        return self.peer != SELF


@dataclass(frozen=True, slots=True, eq=False)
class TrainingGroup:
    """One prompt with those of its completions that have a gradient.

    A completion with A = 0 has no gradient and costs no forward pass. One of our own counts in the normalisation all
    the same, with its tokens; of others, where advantages are against the learner, what teaches nothing counts nowhere,
    so that nobody can dilute a step. With a KL term own completions have a gradient whatever their advantage. Equal
    completions, which short right answers often are, are computed once and counted as often as they occur.
    """

    prompt_ids: tuple[int, ...]  # (P,) P >= 1
    completions: tuple[TrainingCompletion, ...]
    tokens: int  # completion tokens of the whole group, those with A = 0 included where they count
    size: int  # completions of the whole group, likewise
    baseline: Baseline = "fixed"  # otherwise advantages are R − mean R until ``baselines`` has the policy's own
    unusable: int = 0  # foreign completions whose claimed log-probabilities are impossible, dropped or taken as text
    not_copied: tuple[str, ...] = ()  # why right foreign completions were left out, one reason each
    influence: float = 1.0  # what advantages (by ``baselines``), tokens and size are multiplied by

    @property
    def mass(self) -> float:
        """What the group adds to the absolute weights of the loss, less importance weights and influence:
        Σ count · |A| · tokens; where A waits for the policy, of R − mean R."""
        return sum(c.count * len(c.token_ids) * abs(c.advantage) for c in self.completions)

    @property
    def informative(self) -> bool:
        """Whether any advantage is, or may still turn out to be, other than zero."""
        return bool(self.completions) and (self.baseline != "fixed" or any(c.advantage != 0 for c in self.completions))


def merged(completions: Iterable[TrainingCompletion]) -> tuple[TrainingCompletion, ...]:
    """Returns equal completions that the same weights sampled as one, with their ``count``.

    Their behaviour log-probabilities are equal too, up to rounding; those of the first are kept.
    """
    found: dict[tuple[Hashable, ...], TrainingCompletion] = {}
    for each in completions:
        shape = each.alignment.span_of_token.tobytes()
        key = each.token_ids.tobytes(), shape, each.advantage, each.reward, each.as_text, each.segments
        before = found.get(key)
        found[key] = each if before is None else replace(before, count=before.count + each.count)
    return tuple(found.values())
