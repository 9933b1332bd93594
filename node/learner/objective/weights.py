"""Off-policy corrections: what the ratio ρ = π_prox/μ of a span makes of the weight w of its tokens. No gradient.

    none, ppo       1                                          (ppo corrects in the loss, whose ratio is then π_θ/μ)
    byte_aligned    min(ρ, C), filter                          F-TIS over spans (arXiv 2605.22537); C = ratio_cap
    f_tis           the same; where the generator's tokenizer is another, as text (w = 1)
    token_tis       min(ρ, C)                                  truncated importance sampling
    sequence_tis    min(Π ρ, C), Π over the completion         the same on whole completions
    icepop          ρ·1[.5 ≤ ρ ≤ 5]                            IcePop
    masked_is       clip(ρ, .5, 2), a completion with any ρ < 1e-4 vetoed, divided by the batch's mean   (slime)
    sequence_mask   1 where A ≥ 0 or the mean over tokens of log μ − log π is at most .5, else 0   (DeepSeek-V3.2, TRL)
    decoupled_ppo   ρ·1[ρ ≤ C]                                 AReaL, with its cap on the behaviour weight
    ppo_ewma        ρ·1[1/C ≤ ρ ≤ C]                           PPO-EWMA revised (arXiv 2605.12070)

All work on byte-aligned spans, of which a token is the shortest. π_prox is the policy when the step began; ppo_ewma has
an average of the last policies instead, and sequence_mask looks at π_θ itself. With one step a batch π_prox is π_θ, and
decoupled PPO is importance sampling that leaves out, instead of truncating, what lies above C.

What is unbiased. Weights of whole completions, sequence_tis with nothing truncated: E_μ[w A ∇log π] is the on-policy
gradient for any two tokenizers, as long as both write each text in one way only. Weights span by span, which all the
others are, have less variance and are not unbiased for completions of more than one span: their mean is the gradient of
Σ_s J_s, where in J_s the learner writes span s and the generator all the others, before and after. For completions of
one span that is the on-policy gradient again.

The filter leaves out a completion with A ≤ 0 and D(π_θ‖μ) ≥ γ. The floor raises w to c_low where ρ ≤ 1 in foreign
completions with A > 0, annealed c_low·(1 − V_θ): a right answer that we would hardly ever write is what a specialist
has to teach, and plain importance sampling would learn nothing from it. It holds against masks and vetoes below, not
above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from node.configuration import ObjectiveSection
from node.learner.objective.alignment import keep_mask, span_sums
from node.learner.objective.spans import RaggedSpans

ICEPOP_RANGE = (0.5, 5.0)
MASKED_RANGE = (0.5, 2.0)
VETO_RATIO = 1e-4
SEQUENCE_MASK_NATS = 0.5  # a token
FILTERED_CORRECTIONS = frozenset({"byte_aligned", "f_tis"})
UNWEIGHTED_CORRECTIONS = frozenset({"none", "ppo", "sequence_mask"})


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    values: Tensor  # (S,)
    limited: Tensor  # (S,) bool: truncated at a bound or masked out for the ratio
    floored: Tensor  # (S,) bool: raised to the floor
    kept: Tensor  # (B,) bool: not taken out as a whole


def span_weights(
    log_ratios: Tensor,  # (S,) log π_prox − log μ, 0 for text; for sequence_mask log π_θ − log μ
    divergence: Tensor,  # (B,) D(π_θ‖μ)
    spans: RaggedSpans,
    section: ObjectiveSection,
) -> Weights:
    """The weights of one pass, each finite; those of masked_is before they are divided by the batch's mean."""
    raised = spans.foreign & (spans.advantages > 0)  # (B,)
    floors = _floors(spans, section) * raised  # (B,)
    values, limited, kept = _corrected(log_ratios, spans, section, spared=floors > 0)
    if section.correction in FILTERED_CORRECTIONS:
        kept = keep_mask(spans.advantages, divergence, section.filter_gamma) | spans.as_text
    unit_ratios = _sequence_sums(log_ratios, spans) if section.correction == "sequence_tis" else log_ratios
    span_floors = floors[spans.sequence_of_span]  # (S,)
    low = (unit_ratios <= 0) | (unit_ratios.exp() < span_floors)
    floored = low & (values < span_floors)
    return Weights(torch.where(floored, span_floors, values), limited, floored, kept)


def _corrected(
    log_ratios: Tensor, spans: RaggedSpans, section: ObjectiveSection, *, spared: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (S,) before the floor, which of them a bound changed (S,), which completions are kept (B,).

    ``spared`` (B,) are not vetoed.
    """
    name, cap, ratios = section.correction, section.ratio_cap, log_ratios.exp()
    kept = torch.ones_like(spans.foreign)
    if name in ("byte_aligned", "f_tis", "token_tis"):
        return ratios.clamp(max=cap), ratios > cap, kept
    if name == "sequence_tis":
        whole = _sequence_sums(log_ratios, spans).exp()
        return whole.clamp(max=cap), whole > cap, kept
    if name == "masked_is":
        least = torch.full_like(spans.advantages, math.inf).scatter_reduce(
            0, spans.sequence_of_span, ratios, reduce="amin"
        )
        kept = (least >= VETO_RATIO) | spared
        values = ratios.clamp(*MASKED_RANGE)
        return torch.where(kept[spans.sequence_of_span], values, 0.0), values != ratios, kept
    if name == "sequence_mask":
        tokens = spans.lengths  # (B,)
        distance = -span_sums(log_ratios, spans.sequence_of_span, len(tokens)) / tokens
        kept = (spans.advantages >= 0) | (distance <= SEQUENCE_MASK_NATS)
        return kept[spans.sequence_of_span].to(ratios.dtype), torch.zeros_like(ratios, dtype=torch.bool), kept
    low, high = {"icepop": ICEPOP_RANGE, "decoupled_ppo": (0.0, cap), "ppo_ewma": (1 / cap, cap)}.get(
        name, (-math.inf, math.inf)
    )
    if math.isinf(high):  # none, ppo
        return torch.ones_like(ratios), torch.zeros_like(ratios, dtype=torch.bool), kept
    outside = (ratios < low) | (ratios > high)
    return torch.where(outside, 0.0, ratios), outside, kept


def _floors(spans: RaggedSpans, section: ObjectiveSection) -> Tensor:
    """c_low of each completion (B,), not above the cap; 0 where the correction has no weight to raise."""
    if section.correction in UNWEIGHTED_CORRECTIONS:
        return torch.zeros_like(spans.advantages)
    floors = torch.full_like(spans.advantages, section.ratio_floor)
    if section.floor_annealed:
        floors = floors * (1 - spans.success).clamp(0, 1)
    return floors.clamp(max=section.ratio_cap)


def _sequence_sums(log_ratios: Tensor, spans: RaggedSpans) -> Tensor:
    """The log-ratio of its whole completion for each span, (S,)."""
    return span_sums(log_ratios, spans.sequence_of_span, len(spans.advantages))[spans.sequence_of_span]
