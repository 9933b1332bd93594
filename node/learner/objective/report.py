"""What is reported of an optimizer step: sums over its micro-batches, from which shares are computed at the end.

Every figure is over completions with A ≠ 0, each as often as it counts. A share of nothing is None, never a division
by zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from node.learner.objective.batch import RaggedSpans
from node.policy.device import widest_float

if TYPE_CHECKING:
    from node.learner.objective.weights import Weights


@dataclass(slots=True)
class ObjectiveReport:
    """Sums over the micro-batches of one step, or of several."""

    loss: float = 0.0
    tokens: float = 0.0
    spans: float = 0.0
    completions: float = 0.0
    weights: float = 0.0
    squared_weights: float = 0.0
    capped_spans: float = 0.0  # truncated at a bound, or masked out for the ratio
    floored_spans: float = 0.0
    clipped_tokens: float = 0.0  # no gradient, for the ratio to the proximal policy
    filtered_completions: float = 0.0
    text_completions: float = 0.0  # used without behaviour log-probabilities
    entropy: float = 0.0
    kl: float = 0.0  # to the reference, of own completions
    kl_tokens: float = 0.0
    engine_tokens: float = 0.0  # own ones that the present weights sampled, before the first step
    engine_gap: float = 0.0  # of these: Σ |Δ|, Δ = log π_θ − log μ (``node.engines.agreement``)
    engine_kl: float = 0.0  # and Σ e^Δ − Δ − 1
    moved: float = 0.0  # by the steps, of own completions of one pass: Σ e^Δ − Δ − 1, Δ = log π_after − log π_before
    moved_tokens: float = 0.0
    divergence: dict[str, tuple[float, int]] = field(default_factory=dict)  # peer: (sum of D(μ‖π_θ), completions)

    def add(self, other: ObjectiveReport) -> None:
        for name in self.__slots__:
            if name != "divergence":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        for peer, (total, count) in other.divergence.items():
            before = self.divergence.get(peer, (0.0, 0))
            self.divergence[peer] = (before[0] + total, before[1] + count)

    def effective_sample_share(self) -> float | None:
        """Returns (Σw)² / (S Σw²), of the weights as used: 1 when all are equal; None where every weight is 0."""
        return self.weights**2 / (self.spans * self.squared_weights) if self.squared_weights > 0 else None

    def share_of_spans(self, count: float) -> float | None:
        return count / self.spans if self.spans else None

    def clipped_token_share(self) -> float | None:
        return self.clipped_tokens / self.tokens if self.tokens else None

    def filter_share(self) -> float | None:
        return self.filtered_completions / self.completions if self.completions else None

    def text_share(self) -> float | None:
        return self.text_completions / self.completions if self.completions else None

    def mean_entropy(self) -> float | None:
        return self.entropy / self.tokens if self.tokens else None

    def mean_kl(self) -> float | None:
        return self.kl / self.kl_tokens if self.kl_tokens else None

    def mean_engine_gap(self) -> float | None:
        return self.engine_gap / self.engine_tokens if self.engine_tokens else None

    def mean_engine_kl(self) -> float | None:
        return self.engine_kl / self.engine_tokens if self.engine_tokens else None

    def mean_moved(self) -> float | None:
        """Returns KL(π_before‖π_after), nats a token; None where it was not measured."""
        return self.moved / self.moved_tokens if self.moved_tokens else None

    def divergence_by_peer(self) -> dict[str, float]:
        return {peer: total / count for peer, (total, count) in sorted(self.divergence.items())}


def report_of_movement(gaps: Tensor, spans: RaggedSpans) -> ObjectiveReport:
    """Returns the report of a pass whose tokens' log-probabilities steps have changed by ``gaps`` (N,)."""
    exact = widest_float(gaps.device)
    own = (spans.advantages != 0) & ~spans.foreign & ~spans.as_text  # (B,)
    counts, gaps = (spans.counts * own)[spans.sequence_of_token].to(exact), gaps.to(exact)  # (N,)
    moved, tokens = torch.stack([(counts * (torch.expm1(gaps) - gaps)).sum(), counts.sum()]).cpu().tolist()
    return ObjectiveReport(moved=moved, moved_tokens=tokens)


def report_of_micro_batch(
    loss: Tensor,
    entropies: Tensor,  # (N,)
    kl: Tensor | None,  # (N,), times how often each token counts
    spans: RaggedSpans,
    log_ratios: Tensor,  # (S,) log π_θ − log μ
    divergence: Tensor,  # (B,) D(μ‖π_θ)
    weights: Weights,
    clipped: Tensor,  # (N,) bool
) -> ObjectiveReport:
    exact = widest_float(loss.device)
    counts = (spans.counts * (spans.advantages != 0)).to(exact)  # (B,)
    span_counts = counts[spans.sequence_of_span]  # (S,)
    engine_counts = span_counts * spans.present[spans.sequence_of_span]  # (S,); own spans are tokens
    gaps = torch.where(engine_counts > 0, log_ratios, 0.0).to(exact)  # (S,); others may be infinite
    token_counts = counts[spans.sequence_of_token]  # (N,)
    figures = {
        "loss": loss.detach().to(exact),
        "tokens": token_counts.sum(),
        "spans": span_counts.sum(),
        "completions": counts.sum(),
        "weights": (span_counts * weights.values).sum(),
        "squared_weights": (span_counts * weights.values.to(exact).square()).sum(),
        "capped_spans": (span_counts * weights.limited).sum(),
        "floored_spans": (span_counts * weights.floored).sum(),
        "clipped_tokens": (token_counts * clipped).sum(),
        "filtered_completions": (counts * ~weights.kept).sum(),
        "text_completions": (counts * (spans.as_text & spans.foreign)).sum(),
        "entropy": (token_counts * entropies.detach()).sum(),
        "kl": token_counts.new_zeros(()) if kl is None else kl.to(exact).sum(),
        "engine_tokens": engine_counts.sum(),
        "engine_gap": (engine_counts * gaps.abs()).sum(),
        "engine_kl": (engine_counts * (torch.expm1(gaps) - gaps)).sum(),
        "kl_tokens": (spans.counts * spans.lengths * ~spans.foreign).to(exact).sum() * (kl is not None),
    }
    columns = torch.stack([divergence.to(exact), counts, spans.as_text.to(exact)])  # (3, B)
    sums = torch.stack(list(figures.values()))
    read = torch.cat([columns.flatten(), sums]).cpu()  # one transfer from the device, for which the host waits
    by_peer: dict[str, tuple[float, int]] = {}
    by_completion = read[: columns.numel()].view(3, -1).T.tolist()
    for peer, (distance, times, as_text) in zip(spans.peers, by_completion, strict=True):
        if times > 0 and not as_text:
            total, count = by_peer.get(peer, (0.0, 0))
            by_peer[peer] = (total + distance * times, count + round(times))
    values = dict(zip(figures, read[columns.numel() :].tolist(), strict=True))
    return ObjectiveReport(divergence=by_peer, **values)
