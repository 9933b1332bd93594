"""Off-policy corrections: the weight w that a span's tokens get from its ratio ρ = π_prox/μ. No gradient.

    none, ppo       1                                          (ppo corrects in the loss, whose ratio is then π_θ/μ)
    byte_aligned    min(ρ, C), filter                          F-TIS over spans (arXiv 2605.22537); C = ratio_cap
    f_tis           the same; where the generator's tokenizer is another, as text (w = 1)
    token_tis       min(ρ, C)                                  truncated importance sampling
    sequence_tis    min(Π ρ, C), Π over the completion         the same on whole completions
    sequence_mask   1 where A ≥ 0 or the mean over tokens of log μ − log π is at most .5, else 0   (DeepSeek-V3.2, TRL)
    hacpo           s^(1+α)·1[1−δ ≤ s ≤ 1], s = exp(mean over the completion's tokens of log π − log μ), α = 1, δ = .2,
                    for foreign completions; 1 for own         HACPO (arXiv 2603.02604, equation 59)

``CORRECTIONS`` holds each of them with the properties that other modules depend on. To add one, add its name to
``CorrectionName`` and its row here.

All work on byte-aligned spans; the shortest span is a token. π_prox is the policy when the step began; sequence_mask
and hacpo take π_θ itself. With one step a batch π_prox is π_θ.

HACPO clamps s to [1−δ, 1], so outside of it a completion has no gradient: a right answer that the learner would hardly
ever write teaches nothing, as in F-TIS without a floor. With loss "gspo", foreign_advantage "capability", no floor and
one step a batch this is its objective. Departures: the bound is not narrowed by .025 with every step after a batch's
first; where tokenizers differ, both sums are divided by the learner's tokens; no KL term unless kl_weight asks for it.

What is unbiased. Weights of whole completions, sequence_tis with nothing truncated: E_μ[w A ∇log π] is the on-policy
gradient for any two tokenizers, as long as both write each text in one way only. Weights span by span, which all the
others are, have less variance and are not unbiased for completions of more than one span: their mean is the gradient of
Σ_s J_s, where in J_s the learner writes span s and the generator all the others, before and after. For completions of
one span that is the on-policy gradient again.

The filter leaves out a completion with A ≤ 0 and D(π_θ‖μ) ≥ γ. The floor raises w to c_low where ρ ≤ 1 in foreign
completions with A > 0: a right answer that the learner would hardly ever write is what a specialist has to teach, and
plain importance sampling would learn nothing from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from node.configuration import CorrectionName, ObjectiveSection
from node.learner.objective.alignment import keep_mask, span_sums
from node.learner.objective.batch import RaggedSpans

SEQUENCE_MASK_NATS: Final = 0.5  # a token
HACPO_ALPHA: Final = 1.0
HACPO_DELTA: Final = 0.2
NOWHERE: Final = torch.zeros((), dtype=torch.bool)


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """The weights of one micro-batch, and what determined them; what a correction makes of ratios has no floor yet."""

    values: Tensor  # (S,)
    limited: Tensor  # (S,) bool: truncated at a bound or masked out for the ratio
    kept: Tensor  # (B,) bool: False where a filter or a mask takes the whole completion out
    floored: Tensor = NOWHERE  # (S,) bool: raised to the floor


# (log ρ (S,), spans, ratio_cap) → weights
Weigh = Callable[[Tensor, RaggedSpans, float], Weights]


@dataclass(frozen=True, slots=True)
class Correction:
    """One row of ``CORRECTIONS``: how ratios become weights, and the properties that other modules ask for.

    ``weigh`` takes log ρ (S,), the spans and C. The defaults are those of most rows.
    """

    weigh: Weigh
    weighted: bool = True  # False: w is 0 or 1, and there is no weight that a floor could raise
    whole_completions: bool = False  # one ratio Π ρ for all spans of a completion
    filtered: bool = False  # the divergence filter applies
    of_current_policy: bool = False  # ρ is π_θ/μ instead of π_prox/μ
    loss_ratio_to_behaviour: bool = False  # the loss's ratio u is π_θ/μ instead of π_θ/π_prox
    other_tokenizers_as_text: bool = False  # completions of another tokenizer have no behaviour policy


def span_weights(
    log_ratios: Tensor,  # (S,) log π_prox − log μ, 0 for text; log π_θ − log μ where ``of_current_policy``
    divergence: Tensor,  # (B,) D(π_θ‖μ)
    spans: RaggedSpans,
    section: ObjectiveSection,
) -> Weights:
    """Returns the weights of one micro-batch, each finite."""
    correction = CORRECTIONS[section.correction]
    raised = spans.foreign & (spans.advantages > 0)  # (B,)
    # c_low, at most the cap; 0 where there is no weight to raise
    floors = min(section.ratio_floor, section.ratio_cap) * correction.weighted * raised.to(log_ratios.dtype)  # (B,)
    if correction.whole_completions:
        log_ratios = span_sums(log_ratios, spans.sequence_of_span, len(spans.peers))[spans.sequence_of_span]  # (S,)
    corrected = correction.weigh(log_ratios, spans, section.ratio_cap)
    kept = corrected.kept
    if correction.filtered:
        kept = keep_mask(spans.advantages, divergence, section.research.filter_gamma) | spans.as_text
    span_floors = floors[spans.sequence_of_span]  # (S,)
    low = (log_ratios <= 0) | (log_ratios.exp() < span_floors)
    floored = low & (corrected.values < span_floors)
    return Weights(torch.where(floored, span_floors, corrected.values), corrected.limited, kept, floored)


def _one(log_ratios: Tensor, spans: RaggedSpans, cap: float) -> Weights:
    return Weights(torch.ones_like(log_ratios), _none_limited(log_ratios), _all_kept(spans))


def _truncated(log_ratios: Tensor, spans: RaggedSpans, cap: float) -> Weights:
    """min(ρ, C)"""
    ratios = log_ratios.exp()
    return Weights(ratios.clamp(max=cap), ratios > cap, _all_kept(spans))


def _sequence_mask(log_ratios: Tensor, spans: RaggedSpans, cap: float) -> Weights:
    """1, or 0 throughout a completion with A < 0 whose mean log μ − log π is above ``SEQUENCE_MASK_NATS``."""
    distance = -span_sums(log_ratios, spans.sequence_of_span, len(spans.lengths)) / spans.lengths  # (B,) nats a token
    kept = (spans.advantages >= 0) | (distance <= SEQUENCE_MASK_NATS)
    return Weights(kept[spans.sequence_of_span].to(log_ratios.dtype), _none_limited(log_ratios), kept)


def _mean_ratio_in_range(log_ratios: Tensor, spans: RaggedSpans, cap: float) -> Weights:
    """s^(1+α) throughout a foreign completion, or 0 where its mean ratio s is outside [1−δ, 1]; 1 in own ones."""
    means = span_sums(log_ratios, spans.sequence_of_span, len(spans.lengths)) / spans.lengths  # (B,) log s
    outside = spans.foreign & ((means < math.log(1 - HACPO_DELTA)) | (means > 0))
    weights = torch.where(spans.foreign, ((1 + HACPO_ALPHA) * means.clamp(max=0.0)).exp(), 1.0)
    each = spans.sequence_of_span
    return Weights(torch.where(outside, 0.0, weights)[each], outside[each], ~outside)


def _none_limited(log_ratios: Tensor) -> Tensor:
    return torch.zeros_like(log_ratios, dtype=torch.bool)


def _all_kept(spans: RaggedSpans) -> Tensor:
    return torch.ones_like(spans.foreign)


CORRECTIONS: Final[Mapping[CorrectionName, Correction]] = MappingProxyType(
    {
        "none": Correction(_one, weighted=False),
        "ppo": Correction(_one, weighted=False, loss_ratio_to_behaviour=True),
        "byte_aligned": Correction(_truncated, filtered=True),
        "f_tis": Correction(_truncated, filtered=True, other_tokenizers_as_text=True),
        "token_tis": Correction(_truncated),
        "sequence_tis": Correction(_truncated, whole_completions=True),
        "sequence_mask": Correction(_sequence_mask, weighted=False, of_current_policy=True),
        "hacpo": Correction(_mean_ratio_in_range, of_current_policy=True),
    }
)
