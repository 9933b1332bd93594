"""Drawing tokens: token = min {v : CDF(v) > u}, u uniform in [0, 1), CDF of softmax(logits / temperature).

One uniform number is used per row. Sums are in double precision where the device supports it, so that even a token of
probability 1e-12 is drawn as often as it should be. The log-probability is that of the distribution drawn from.
"""

from __future__ import annotations

import torch
from torch import Tensor

from node.policy.device import widest_float


def draw(logits: Tensor, temperature: float, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Returns tokens (n,) int64 and their log-probabilities (n,) float32 in nats, drawn from ``logits`` (n, V).

    ``uniform`` is (n,), float64 where the device supports it. ``temperature`` 0 takes the most likely token, with its
    log-probability at temperature 1.
    """
    if temperature not in (0.0, 1.0):
        logits = logits / temperature
    logps = torch.log_softmax(logits, -1, dtype=torch.float32)
    if temperature == 0.0:
        tokens = logps.argmax(-1, keepdim=True)
    else:
        cumulative = logps.exp().cumsum(-1, dtype=widest_float(logits.device))
        tokens = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)
        tokens.clamp_(max=logits.shape[1] - 1)  # rounding may put u · CDF(V) at CDF(V) itself
    return tokens.squeeze(1), logps.gather(1, tokens).squeeze(1)
