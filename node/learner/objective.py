"""The objective: filtered, truncated importance sampling (F-TIS, arXiv 2605.22537), normalised by tokens.

    L = − 1/N Σ_i Σ_t  w(span of t) · min( r_t Ã_i, clip(r_t, 1−ε, 1+ε) Ã_i ),     r = π_θ / sg(π_θ)
    Ã_i = A_i where A_i > 0 or D(π_θ‖μ) < γ, else 0

w is the truncated ratio to the behaviour policy (``off_policy``), without gradient; all tokens of a span share it.

Departures from the paper: Σ over all tokens of the batch divided by their number N, completions with A = 0 included,
where the paper averages over tokens within a completion first; ratios per byte-aligned span, so that the tokenizers may
differ; a floor under w for foreign completions with A > 0. One step is taken on each batch, so π_θ in the denominator
of r is the policy of this very pass, r is 1 and the clip binds nothing: it has its place for several steps a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from node.config import LearnerSection
from node.learner.off_policy import DivergenceEstimator, divergences, importance_weights, keep_mask, span_sums
from node.learner.training_batch import TrainingCompletion


@dataclass(frozen=True, slots=True, eq=False)
class RaggedSpans:
    """The spans of B completions, one after the other without padding: N tokens in S spans."""

    span_of_token: Tensor  # (N,) int64
    sequence_of_span: Tensor  # (S,) int64
    behaviour_logps: Tensor  # (S,) float32
    advantages: Tensor  # (B,) float32
    foreign: Tensor  # (B,) bool
    counts: Tensor  # (B,) float32, how often each completion counts
    peers: tuple[str, ...]  # (B,)

    @classmethod
    def of(cls, completions: Sequence[TrainingCompletion], device: torch.device | str = "cpu") -> RaggedSpans:
        """Lays the completions out in the order given; the N tokens must be laid out in the same order."""
        counts = [c.alignment.spans for c in completions]
        starts = np.cumsum([0, *counts[:-1]])
        span_of_token = np.concatenate(
            [c.alignment.span_of_token + s for c, s in zip(completions, starts, strict=True)]
        )
        return cls(
            torch.from_numpy(span_of_token).to(device),
            torch.from_numpy(np.repeat(np.arange(len(completions)), counts)).to(device),
            torch.from_numpy(np.concatenate([c.alignment.behaviour_logps for c in completions])).to(device),
            torch.tensor([c.advantage for c in completions], dtype=torch.float32, device=device),
            torch.tensor([c.foreign for c in completions], dtype=torch.bool, device=device),
            torch.tensor([c.count for c in completions], dtype=torch.float32, device=device),
            tuple(c.peer for c in completions),
        )


@dataclass(slots=True)
class ObjectiveReport:
    """Sums over the passes of one step; ratios are taken at the end. Without a trained token every ratio is None."""

    loss: float = 0.0
    tokens: int = 0
    spans: int = 0
    completions: int = 0
    weights: float = 0.0
    squared_weights: float = 0.0
    capped_spans: int = 0
    floored_spans: int = 0
    filtered_completions: int = 0
    entropy: float = 0.0
    divergence: dict[str, tuple[float, int]] = field(default_factory=dict)  # peer: (sum, completions)

    def add(self, other: ObjectiveReport) -> None:
        for name in self.__slots__:
            if name != "divergence":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        for peer, (total, count) in other.divergence.items():
            before = self.divergence.get(peer, (0.0, 0))
            self.divergence[peer] = (before[0] + total, before[1] + count)

    def effective_sample_share(self) -> float | None:
        """(Σw)² / (S Σw²), of the weights as used: 1 when all are equal."""
        return self.weights**2 / (self.spans * self.squared_weights) if self.squared_weights > 0 else None

    def share_of_spans(self, count: int) -> float | None:
        return count / self.spans if self.spans else None

    def filter_share(self) -> float | None:
        return self.filtered_completions / self.completions if self.completions else None

    def mean_entropy(self) -> float | None:
        return self.entropy / self.tokens if self.tokens else None

    def divergence_by_peer(self) -> dict[str, float]:
        return {peer: total / count for peer, (total, count) in sorted(self.divergence.items())}


def clipped_gain(ratios: Tensor, advantages: Tensor, epsilon: float) -> Tensor:
    """min(rA, clip(r, 1−ε, 1+ε)A), elementwise (N,)."""
    return torch.minimum(ratios * advantages, ratios.clamp(1 - epsilon, 1 + epsilon) * advantages)


def f_tis_loss(
    logps: Tensor,
    entropies: Tensor,
    spans: RaggedSpans,
    section: LearnerSection,
    *,
    normalizing_tokens: int,
    estimator: DivergenceEstimator = "k3",
) -> tuple[Tensor, ObjectiveReport]:
    """The loss of one pass, a scalar with a gradient through ``logps`` (N,), and what to report of it.

    ``normalizing_tokens`` is the number of completion tokens of the whole batch, so that losses and gradients of
    passes add up to those of the batch. ``entropies`` (N,) are reported only.
    """
    sequences, total_spans = len(spans.peers), len(spans.behaviour_logps)
    with torch.no_grad():
        log_ratios = span_sums(logps.detach(), spans.span_of_token, total_spans) - spans.behaviour_logps  # (S,)
        divergence = divergences(log_ratios, spans.sequence_of_span, sequences, estimator)  # (B,)
        kept = keep_mask(spans.advantages, divergence, section.filter_gamma)  # (B,)
        raised = (spans.foreign & (spans.advantages > 0))[spans.sequence_of_span]  # (S,)
        weights = importance_weights(
            log_ratios, cap=section.ratio_cap, floor=section.ratio_floor, raise_to_floor=raised
        )  # (S,)
        filtered_advantages = torch.where(kept, spans.advantages, 0.0)  # (B,)
        sequence_of_token = spans.sequence_of_span[spans.span_of_token]  # (N,)
        token_weights = weights[spans.span_of_token] * spans.counts[sequence_of_token]  # (N,)
        token_advantages = filtered_advantages[sequence_of_token]  # (N,)
    policy_ratios = torch.exp(logps - logps.detach())  # (N,) π_θ / sg(π_θ)
    gain = token_weights * clipped_gain(policy_ratios, token_advantages, section.clip)  # (N,)
    loss = -gain.sum() / normalizing_tokens
    return loss, _report(loss, entropies, spans, section, log_ratios, weights, kept, divergence, raised)


def _report(
    loss: Tensor,
    entropies: Tensor,
    spans: RaggedSpans,
    section: LearnerSection,
    log_ratios: Tensor,
    weights: Tensor,
    kept: Tensor,
    divergence: Tensor,
    raised: Tensor,
) -> ObjectiveReport:
    ratios = log_ratios.exp()
    floored = raised & (ratios < min(section.ratio_floor, section.ratio_cap))
    span_counts = spans.counts[spans.sequence_of_span].double()  # (S,)
    token_counts = span_counts[spans.span_of_token]  # (N,)
    figures = (
        loss.detach().double(),
        token_counts.sum(),
        span_counts.sum(),
        spans.counts.double().sum(),
        (span_counts * weights).sum(),
        (span_counts * weights.double().square()).sum(),
        (span_counts * (ratios > section.ratio_cap)).sum(),
        (span_counts * floored).sum(),
        (spans.counts * ~kept).double().sum(),
        (token_counts * entropies.detach()).sum(),
    )
    values: list[float] = torch.stack(figures).tolist()  # one transfer from the device instead of ten
    by_peer: dict[str, tuple[float, int]] = {}
    for peer, each, times in zip(spans.peers, divergence.tolist(), spans.counts.tolist(), strict=True):
        total, count = by_peer.get(peer, (0.0, 0))
        by_peer[peer] = (total + each * times, count + round(times))
    return ObjectiveReport(
        loss=values[0],
        tokens=round(values[1]),
        spans=round(values[2]),
        completions=round(values[3]),
        weights=values[4],
        squared_weights=values[5],
        capped_spans=round(values[6]),
        floored_spans=round(values[7]),
        filtered_completions=round(values[8]),
        entropy=values[9],
        divergence=by_peer,
    )
