"""Whether the log-probabilities that came with a foreign group can be those of a policy that sampled it.

They cannot be checked without that policy's weights; what no policy can have is found all the same:

- A completion with as many log-probabilities as tokens, all finite and none above 0, is the least.
- Surprise. Under μ itself, E[1/μ(y)] is the number of sequences of that length, at most V^T, so by Markov's inequality
  −log μ(y) > T·log V + k has a probability below e^−k. Taken with V = 2^18 and k = 14.
- Mass. Distinct completions of one prompt exclude each other, so their probabilities sum to at most 1. Whoever sends
  zeros for want of the real ones, or to gain weight, sends a sum of G. Allowed is 2: a group that was resumed after a
  change of weights comes from two policies.
"""

from __future__ import annotations

import math

import numpy as np

from protocol.rollouts import Completion, Group

VOCABULARY_NATS = 18 * math.log(2)
SURPRISE_MARGIN_NATS = 14.0  # e^-14 is one in a million
MAX_MASS = 2.0


def usable_logps(group: Group) -> tuple[bool, ...]:
    """For each of the G completions, whether its log-probabilities can be what they claim to be."""
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
