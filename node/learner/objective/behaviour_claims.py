"""Whether the log-probabilities that came with a foreign group can be those of a policy that sampled it.

They cannot be checked without that policy's weights, but log-probabilities that no policy can have are found:

- Form. A completion has as many log-probabilities as tokens, all finite and none above 0.
- Surprise. Under μ itself, E[1/μ(y)] is the number of sequences of that length, at most V^T, so by Markov's inequality
  −log μ(y) > T·log V + k has a probability below e^−k. Taken with V = 2^18 and k = 14.
- Mass. Distinct completions of one prompt exclude each other, so their probabilities sum to at most 1. A peer that
  sends zeros, because it has no real ones or to gain weight, sends a sum of G. The limit is 2: a group that was resumed
  after a change of weights comes from two policies.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from protocol.rollouts import Completion, Group

VOCABULARY_NATS: Final = 18 * math.log(2)
SURPRISE_MARGIN_NATS: Final = 14.0  # e^-14 is one in a million
MAX_MASS: Final = 2.0


def usable_logps(group: Group) -> tuple[bool, ...]:
    """Returns for each of the G completions whether its log-probabilities can be those of its sampler."""
    plausible = tuple(_plausible(completion) for completion in group.completions)
    distinct = {
        (c.token_ids.tobytes(), c.finish): float(c.logps.sum(dtype=np.float64))
        for c, fine in zip(group.completions, plausible, strict=True)
        if fine
    }
    if sum(math.exp(logp) for logp in distinct.values()) > MAX_MASS:
        return (False,) * len(plausible)
    return plausible


def _plausible(completion: Completion) -> bool:
    logps, tokens = completion.logps, len(completion.token_ids)
    if len(logps) != tokens or not np.isfinite(logps).all() or bool((logps > 0).any()):
        return False
    return -float(logps.sum(dtype=np.float64)) <= tokens * VOCABULARY_NATS + SURPRISE_MARGIN_NATS
