"""The objective of one step: L = Σ_i Σ_t c_it · ( −w_it · gain(u_it, Ã_i) + β·1[own]·k3_it ).

    u = π_θ/π_prox    the ratio that carries the gradient; π_prox is the policy when the step began; with correction
                      "ppo" u = π_θ/μ, of a token's byte-aligned span
    w                 the off-policy correction, without gradient                                  (``weights``)
    Ã                 A, or 0 where a filter takes the completion out
    gain              min( min(u, δ)·A, clip(u, 1−ε, 1+ε_high)·A )          δ only where clip_negative is set
                      cispo: sg(min(u, ε_high))·A·log π_θ
                      gspo: the first, with u = exp(mean over the completion's tokens of log u)
    k3                e^d − d − 1, d = log π_ref − log π_θ, own completions alone: others are no sample of π_θ
    c                 dapo, cispo: 1/(tokens of the batch)          grpo, gspo: 1/(completions · own tokens)
                      dr_grpo: 1/(completions · longest answer allowed)

As in TRL 1.16, with which a test agrees to 1e-6. Tokens and completions are those of the whole batch, A = 0 included,
so losses and gradients of micro-batches add up. TRL's bnpo, which divides by the tokens of each micro-batch, equals
dapo here and has no name of its own.

With correction "byte_aligned" or "f_tis" and one step a batch this is F-TIS (arXiv 2605.22537): u = π_θ/sg(π_θ) is 1,
the clip binds nothing, and w = min(π_θ/μ, C). Departures: dapo's c by default, where the paper averages over the tokens
of each completion first; weights of spans instead of tokens; a floor under w.

A span's or a completion's u has its value from all its tokens, and each token's gradient goes through its own
log-probability, so all weigh alike. For gspo this is the gradient of the published ratio exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from node.configuration import LossName, ObjectiveSection
from node.learner.objective.alignment import divergences, span_sums
from node.learner.objective.batch import RaggedSpans
from node.learner.objective.report import ObjectiveReport, report_of_micro_batch
from node.learner.objective.weights import CORRECTIONS, span_weights

LOG_RATIO_BOUND: Final = 20.0  # nats; u up to 5e8, beyond which one token would make the whole step infinite


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """What losses are divided by; of the whole batch, completions with A = 0 included."""

    tokens: int
    completions: int
    max_new_tokens: int  # that the tasks allow in an answer; for dr_grpo


@dataclass(frozen=True, slots=True, eq=False)
class Anchors:
    """Log-probabilities of one micro-batch's tokens under other policies, (N,) each, without gradient."""

    proximal: Tensor | None = None  # None: those that the loss is computed from
    reference: Tensor | None = None  # None where there is no KL term


# (log π_θ (N,), log π_prox (N,), advantages (N,), section) → gain (N,), whether a bound removed the gradient (N,) bool
Gain = Callable[[Tensor, Tensor, Tensor, ObjectiveSection], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class LossRule:
    """How the tokens' gains are made and added up."""

    divisor: Callable[[BatchTotals], int]  # of the sum over the batch
    gain: Gain
    mean_of_completion: bool = False  # each token's term is divided by its completion's own tokens
    completion_ratio: bool = False  # one u for all tokens of a completion


def objective_loss(
    logps: Tensor,
    entropies: Tensor,
    spans: RaggedSpans,
    section: ObjectiveSection,
    totals: BatchTotals,
    anchors: Anchors = Anchors(),  # frozen
) -> tuple[Tensor, ObjectiveReport]:
    """Returns the loss of one micro-batch, a scalar with a gradient through ``logps`` (N,), and its report.

    A completion with A = 0 adds to the KL term alone. ``entropies`` (N,) are reported only. Computes in the dtype of
    ``logps``.
    """
    rule, correction = LOSSES[section.research.loss], CORRECTIONS[section.correction]
    with torch.no_grad():
        here = logps.detach()
        proximal = here if anchors.proximal is None else anchors.proximal  # (N,)
        log_ratios = spans.log_ratios(here)  # (S,)
        filtered_by, distance = divergences(log_ratios, spans.sequence_of_span, len(spans.peers))  # (B,)
        to_weigh = log_ratios if correction.of_current_policy else spans.log_ratios(proximal)  # (S,)
        weights = span_weights(to_weigh, filtered_by, spans, section)
        sequence_of_token = spans.sequence_of_token  # (N,)
        token_weights = weights.values[spans.span_of_token] * spans.counts[sequence_of_token]  # (N,)
        token_advantages = torch.where(weights.kept[sequence_of_token], spans.token_advantages, 0.0)  # (N,)
        log_u = _log_u(here, proximal, log_ratios, spans, section).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        anchor = here - log_u  # (N,)
    gain, clipped = rule.gain(logps, anchor, token_advantages, section)
    terms = -(token_weights * gain)  # (N,)
    kl = None
    if anchors.reference is not None:
        gap = anchors.reference - logps
        own = (~(spans.foreign | spans.as_text))[sequence_of_token] * spans.counts[sequence_of_token]  # (N,)
        kl_terms = own * (torch.expm1(gap) - gap)
        terms, kl = terms + section.kl_weight * kl_terms, kl_terms.detach()
    if rule.mean_of_completion:
        terms = terms / spans.lengths[sequence_of_token]
    loss = terms.sum() / divisor_of(totals, section)
    return loss, report_of_micro_batch(loss, entropies, kl, spans, log_ratios, distance, weights, clipped)


def divisor_of(totals: BatchTotals, section: ObjectiveSection) -> int:
    """Returns what the sum over the batch is divided by, at least 1: a batch of nothing is not divided by zero."""
    return max(1, LOSSES[section.research.loss].divisor(totals))


def _log_u(
    logps: Tensor, proximal: Tensor, log_ratios: Tensor, spans: RaggedSpans, section: ObjectiveSection
) -> Tensor:
    """Returns log u of each token (N,), unbounded."""
    to_behaviour = CORRECTIONS[section.correction].loss_ratio_to_behaviour
    if not LOSSES[section.research.loss].completion_ratio:
        return log_ratios[spans.span_of_token] if to_behaviour else logps - proximal
    sums = (
        span_sums(log_ratios, spans.sequence_of_span, len(spans.peers))
        if to_behaviour
        else span_sums(logps - proximal, spans.sequence_of_token, len(spans.peers))
    )
    return (sums / spans.lengths)[spans.sequence_of_token]


def _clipped(logps: Tensor, anchor: Tensor, advantages: Tensor, section: ObjectiveSection) -> tuple[Tensor, Tensor]:
    ratios = torch.exp(logps - anchor)
    low, negative = section.clip, section.research.clip_negative
    high = section.research.clip_high or low
    clipped = ((ratios < 1 - low) & (advantages < 0)) | ((ratios > 1 + high) & (advantages > 0))
    if negative:
        clipped = clipped | ((ratios > negative) & (advantages < 0))
    return clipped_gain(ratios, advantages, low, high, negative), clipped


def _cispo(logps: Tensor, anchor: Tensor, advantages: Tensor, section: ObjectiveSection) -> tuple[Tensor, Tensor]:
    ratios, high = torch.exp(logps - anchor).detach(), section.research.clip_high or section.clip
    return ratios.clamp(max=high) * advantages * logps, (ratios > high) & (advantages != 0)


def clipped_gain(ratios: Tensor, advantages: Tensor, low: float, high: float, negative: float = 0.0) -> Tensor:
    """Returns min(min(r, δ)A, clip(r, 1−ε, 1+ε_high)A), elementwise (N,); δ = ``negative``, 0 for none."""
    bounded = ratios.clamp(max=negative) if negative else ratios
    return torch.minimum(bounded * advantages, ratios.clamp(1 - low, 1 + high) * advantages)


LOSSES: Final[Mapping[LossName, LossRule]] = MappingProxyType(
    {
        "dapo": LossRule(lambda totals: totals.tokens, _clipped),
        "grpo": LossRule(lambda totals: totals.completions, _clipped, mean_of_completion=True),
        "dr_grpo": LossRule(lambda totals: totals.completions * totals.max_new_tokens, _clipped),
        "gspo": LossRule(lambda totals: totals.completions, _clipped, mean_of_completion=True, completion_ratio=True),
        "cispo": LossRule(lambda totals: totals.tokens, _cispo),
    }
)
