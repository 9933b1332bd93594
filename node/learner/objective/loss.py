"""The objective of one step: L = Σ_i Σ_t c_it · ( −w_it · gain(u_it, Ã_i) + β·1[own]·k3_it ).

    u = π_θ/π_prox    the ratio that carries the gradient; π_prox is the policy when the step began, or with ppo_ewma
                      an average of the last ones; with correction "ppo" u = π_θ/μ, of a token's byte-aligned span
    w                 the off-policy correction, without gradient                                  (objective_weights)
    Ã                 A, or 0 where a filter takes the completion out
    gain              min( min(u, δ)·A, clip(u, 1−ε, 1+ε_high)·A )          δ only where clip_negative is set
                      cispo: sg(min(u, ε_high))·A·log π_θ
                      gspo: the first, with u = exp(mean over the completion's tokens of log u)
    k3                e^d − d − 1, d = log π_ref − log π_θ, own completions alone: others are no sample of π_θ
    c                 dapo, bnpo, cispo: 1/(tokens of the batch)    grpo, gspo: 1/(completions · own tokens)
                      dr_grpo: 1/(completions · longest answer allowed)

As in TRL 1.16, with which a test agrees to 1e-6. Tokens and completions are those of the whole batch, A = 0 included,
so losses and gradients of passes add up; bnpo, which elsewhere divides by the tokens of each pass, is therefore dapo.

With correction "byte_aligned" or "f_tis" and one step a batch this is F-TIS (arXiv 2605.22537): u = π_θ/sg(π_θ) is 1,
the clip binds nothing, and w = min(π_θ/μ, C). Departures: dapo's c by default, where the paper averages over the tokens
of each completion first; weights of spans instead of tokens; a floor under w.

A span's or a completion's u has its value from all its tokens, and each token's gradient goes through its own
log-probability, so all weigh alike. For gspo this is the gradient of the published ratio exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from node.configuration import ObjectiveSection
from node.learner.objective.alignment import divergences, span_sums
from node.learner.objective.report import ObjectiveReport, report_of_micro_batch
from node.learner.objective.spans import RaggedSpans
from node.learner.objective.weights import Weights, span_weights

LOG_RATIO_BOUND: Final = 20.0  # nats; u up to 5e8, beyond which one token would make the whole step infinite


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """What losses are divided by; of the whole batch, completions with A = 0 included."""

    tokens: int
    completions: int
    longest: int  # own tokens that an answer may have at most; for dr_grpo

    def divisor(self, section: ObjectiveSection) -> int:
        """At least 1, so that a batch of nothing divides nothing by zero."""
        if section.loss in ("grpo", "gspo"):
            return max(1, self.completions)
        if section.loss == "dr_grpo":
            return max(1, self.completions * self.longest)
        return max(1, self.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Anchors:
    """Log-probabilities of one pass's tokens under other policies, (N,) each, without gradient."""

    proximal: Tensor | None = None  # None: those of this very pass
    reference: Tensor | None = None  # None where there is no KL term
    mean_weight: float = 1.0  # over the tokens of the whole batch; for masked_is

    def with_proximal(self, logps: Tensor) -> Anchors:
        return replace(self, proximal=logps)


def objective_loss(
    logps: Tensor,
    entropies: Tensor,
    spans: RaggedSpans,
    section: ObjectiveSection,
    totals: BatchTotals,
    anchors: Anchors = Anchors(),  # frozen
) -> tuple[Tensor, ObjectiveReport]:
    """The loss of one pass, a scalar with a gradient through ``logps`` (N,), and what to report of it.

    Every completion of ``spans`` may have A = 0; such a one adds to the KL term alone. ``entropies`` (N,) are reported
    only. Computes in the dtype of ``logps``.
    """
    with torch.no_grad():
        here = logps.detach()
        proximal = here if anchors.proximal is None else anchors.proximal  # (N,)
        log_ratios = spans.log_ratios(here)  # (S,)
        divergence = divergences(log_ratios, spans.sequence_of_span, len(spans.peers), section.divergence)  # (B,)
        to_weigh = log_ratios if section.correction == "sequence_mask" else spans.log_ratios(proximal)  # (S,)
        weights = span_weights(to_weigh, divergence, spans, section)
        sequence_of_token = spans.sequence_of_token  # (N,)
        token_weights = weights.values[spans.span_of_token] * spans.counts[sequence_of_token]  # (N,)
        if anchors.mean_weight != 1.0:
            token_weights = token_weights / anchors.mean_weight
        token_advantages = torch.where(weights.kept, spans.advantages, 0.0)[sequence_of_token]  # (N,)
        anchor = here - _log_ratio_values(here, proximal, log_ratios, spans, section)  # (N,)
    gain, clipped = policy_gain(logps, anchor, token_advantages, section)
    terms = -(token_weights * gain)  # (N,)
    kl = None
    if anchors.reference is not None:
        gap = anchors.reference - logps
        own = (~spans.foreign)[sequence_of_token] * spans.counts[sequence_of_token]  # (N,)
        kl_terms = own * (torch.expm1(gap) - gap)
        terms, kl = terms + section.kl_weight * kl_terms, kl_terms.detach()
    if section.loss in ("grpo", "gspo"):
        terms = terms / spans.lengths[sequence_of_token]
    loss = terms.sum() / totals.divisor(section)
    return loss, report_of_micro_batch(loss, entropies, kl, spans, log_ratios, divergence, weights, clipped)


def _log_ratio_values(
    logps: Tensor, proximal: Tensor, log_ratios: Tensor, spans: RaggedSpans, section: ObjectiveSection
) -> Tensor:
    """log u of each token (N,), of which ``LOG_RATIO_BOUND`` keeps u finite."""
    return _unbounded_log_ratios(logps, proximal, log_ratios, spans, section).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def _unbounded_log_ratios(
    logps: Tensor, proximal: Tensor, log_ratios: Tensor, spans: RaggedSpans, section: ObjectiveSection
) -> Tensor:
    to_behaviour = section.correction == "ppo"
    if section.loss == "gspo":
        sums = (
            span_sums(log_ratios, spans.sequence_of_span, len(spans.peers))
            if to_behaviour
            else span_sums(logps - proximal, spans.sequence_of_token, len(spans.peers))
        )
        return (sums / spans.lengths)[spans.sequence_of_token]
    return log_ratios[spans.span_of_token] if to_behaviour else logps - proximal


def policy_gain(logps: Tensor, anchor: Tensor, advantages: Tensor, section: ObjectiveSection) -> tuple[Tensor, Tensor]:
    """The gain of each token (N,) for u = exp(logps − anchor), and where a bound took its gradient away (N,) bool."""
    ratios = torch.exp(logps - anchor)
    high = section.clip_high or section.clip
    if section.loss == "cispo":
        ratios = ratios.detach()
        return ratios.clamp(max=high) * advantages * logps, (ratios > high) & (advantages != 0)
    clipped = ((ratios < 1 - section.clip) & (advantages < 0)) | ((ratios > 1 + high) & (advantages > 0))
    if section.clip_negative:
        clipped = clipped | ((ratios > section.clip_negative) & (advantages < 0))
    return clipped_gain(ratios, advantages, section.clip, high, section.clip_negative), clipped


def clipped_gain(ratios: Tensor, advantages: Tensor, low: float, high: float, negative: float = 0.0) -> Tensor:
    """min(min(r, δ)A, clip(r, 1−ε, 1+ε_high)A), elementwise (N,); δ = ``negative``, 0 for none."""
    bounded = ratios.clamp(max=negative) if negative else ratios
    return torch.minimum(bounded * advantages, ratios.clamp(1 - low, 1 + high) * advantages)


def mean_token_weight(weights: list[tuple[Weights, RaggedSpans]]) -> float:
    """The mean of the weights over the tokens of completions with A ≠ 0 of all passes; 1 where it would be 0."""
    total = tokens = 0.0
    for each, spans in weights:
        counts = (spans.counts * (spans.advantages != 0))[spans.sequence_of_token].double()  # (N,)
        total += float((each.values[spans.span_of_token] * counts).sum())
        tokens += float(counts.sum())
    return total / tokens if total > 0 else 1.0
