"""How far the policy that sampled a completion is from the learner's: one text in two tokenizations, span by span.

For completion text s let B be the byte offsets at which both the generator's and the learner's tokenization have a
boundary (|s| always). A span lies between neighbours in B; its ratio is

    ρ(span) = exp( Σ log π_θ(own tokens in span) − Σ log μ(generator's tokens in span) )

Equal tokenizations give one token a span. A sampled end of sequence is a span of its own. Tokens without text (padding,
beginning of sequence) belong to the span that ends where they stand, and to the first span when they open the
completion. How ratios become weights is in ``weights``.

Samples are the generator's, so both divergences between the policies are estimated under μ, with ρ = π_θ/μ of a span,
summed over the completion's spans; no term is negative:

    D(π_θ‖μ)    Σ ρ log ρ − ρ + 1     what F-TIS (arXiv 2605.22537) filters by: large where the generator seldom wrote
                                      what the learner would write
    D(μ‖π_θ)    Σ ρ − log ρ − 1       what is reported, and chosen by: how little the learner would write such a text
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """One completion's own tokens, grouped into the spans that both tokenizations share."""

    span_of_token: NDArray[np.int64]  # (T,) ascending from 0 to S - 1
    behaviour_logps: NDArray[np.float32]  # (S,) Σ log μ over the generator's tokens of each span
    multi_token: int  # spans with more than one token on either side

    @property
    def spans(self) -> int:
        return len(self.behaviour_logps)


def align(
    own_bytes: NDArray[np.int64],
    behaviour_bytes: NDArray[np.int64],
    behaviour_logps: NDArray[np.float32],
    *,
    end_of_sequence: bool,
) -> Alignment | None:
    """Aligns two tokenizations of one text by the byte lengths of their tokens.

    ``own_bytes`` (T,), ``behaviour_bytes`` and ``behaviour_logps`` (U,). With ``end_of_sequence`` both end in that
    token, of zero bytes. Returns None where nothing can be aligned: no own token at all, or none of the generator's.
    Raises ``ValueError`` where the two do not sum to the same number of bytes.
    """
    if int(own_bytes.sum()) != int(behaviour_bytes.sum()):
        raise ValueError(f"tokenizations of {own_bytes.sum()} and {behaviour_bytes.sum()} bytes cannot be of one text")
    if len(own_bytes) == 0 or len(behaviour_bytes) == 0:
        return None
    if np.array_equal(own_bytes, behaviour_bytes):
        return token_alignment(behaviour_logps.astype(np.float32))
    own_spans, behaviour_spans, spans = _common_spans(own_bytes, behaviour_bytes, end_of_sequence)
    own_count = np.bincount(own_spans, minlength=spans)
    behaviour_count = np.bincount(behaviour_spans, minlength=spans)
    if (own_count == 0).any() or (behaviour_count == 0).any():
        return None  # a text of zero bytes, with tokens on one side only
    sums = np.bincount(behaviour_spans, weights=behaviour_logps, minlength=spans)
    multi_token = int(((own_count > 1) | (behaviour_count > 1)).sum())
    return Alignment(own_spans, sums.astype(np.float32), multi_token)


def token_alignment(behaviour_logps: NDArray[np.float32]) -> Alignment:
    """Returns the alignment of tokens that the generator cut alike, by their log-probabilities (T,): one span a
    token."""
    return Alignment(np.arange(len(behaviour_logps)), behaviour_logps, 0)


def text_alignment(tokens: int) -> Alignment:
    """Returns the alignment of ``tokens`` own tokens whose behaviour policy is unknown: one span a token."""
    return token_alignment(np.zeros(tokens, dtype=np.float32))


def joined(turns: Sequence[Alignment | None]) -> Alignment | None:
    """Returns the alignment of a conversation from those of its actions; None where one of them has none."""
    if len(turns) == 1:
        return turns[0]
    whole = [each for each in turns if each is not None]
    if len(whole) < len(turns):
        return None
    firsts = np.cumsum([0, *(each.spans for each in whole[:-1])])
    return Alignment(
        np.concatenate([each.span_of_token + first for each, first in zip(whole, firsts, strict=True)]),
        np.concatenate([each.behaviour_logps for each in whole]),
        sum(each.multi_token for each in whole),
    )


def _common_spans(
    own_bytes: NDArray[np.int64], behaviour_bytes: NDArray[np.int64], end_of_sequence: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Returns the span of each own token (T,), of each of the generator's (U,), and the number of spans."""
    own_ends, behaviour_ends = np.cumsum(own_bytes), np.cumsum(behaviour_bytes)
    boundaries = np.intersect1d(own_ends, behaviour_ends)
    boundaries = boundaries[boundaries > 0]
    spans = len(boundaries)
    # A token that ends at offset e lies in the first span that ends at e or later. A token without text "ends" where
    # it stands, so it belongs to the span before it.
    own_spans = np.searchsorted(boundaries, own_ends)
    behaviour_spans = np.searchsorted(boundaries, behaviour_ends)
    if end_of_sequence:
        own_spans[-1] = behaviour_spans[-1] = spans
        spans += 1
    return own_spans, behaviour_spans, max(spans, 1)


def span_sums(values: Tensor, span_of_token: Tensor, spans: int) -> Tensor:
    """Returns the sums (S,) of ``values`` (N,) over the spans given by ``span_of_token`` (N,)."""
    return values.new_zeros(spans).index_add(0, span_of_token, values)


def divergences(log_ratios: Tensor, sequence_of_span: Tensor, sequences: int) -> tuple[Tensor, Tensor]:
    """Returns D(π_θ‖μ) and D(μ‖π_θ) of each completion (B,), from log π_θ − log μ of its spans (S,). Either may be
    infinite, and is never NaN."""
    ratios = log_ratios.exp()
    from_learner = torch.where(ratios > 0, ratios * (log_ratios - 1) + 1, 1.0)  # lim ρ log ρ = 0
    from_generator = torch.expm1(log_ratios) - log_ratios
    return tuple(span_sums(terms, sequence_of_span, sequences) for terms in (from_learner, from_generator))  # type: ignore[return-value]


def keep_mask(advantages: Tensor, divergence: Tensor, gamma: float) -> Tensor:
    """The filter: True (B,) where A > 0 or D < γ. A completion taken out still counts in its group's mean and std."""
    return (advantages > 0) | (divergence < gamma)
