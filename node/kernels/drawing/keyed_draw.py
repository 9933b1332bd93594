"""Tokens and their log-probabilities from logits, by a counter-based generator: the definition, and the torch path.

    w_v = exp(z_v / T − max_u z_u / T)                      the vocabulary lies in blocks of 4096 tokens
    block = argmax_b Σ_{v ∈ b} w_v / E_b                    E: independent exponentials of rate 1
    token = argmax_{v ∈ block} w_v / E_v                    logp = z_token / T − log Σ_u exp(z_u / T)

The smallest of independent E_i / r_i is the i-th with probability r_i / Σ r (a race of exponentials), so a token is
drawn with probability softmax(z / T). Temperature 0 takes the likeliest token, of equals the first, with its
log-probability at temperature 1.

**Random numbers.** E = −log(1 − u), u = (x + ½) 2⁻⁶⁴, x the first two words of Philox4x32-10 (Salmon et al., 2011)
under the key ``seed`` and the counter (v, or 2³¹ + b for a block; step; completion's low and high word). A row's token
therefore depends on its logits, the seed, its completion and its step alone: not on its place in the batch, nor on who
else is in it.

**Accuracy.** Sums are pairwise and in float32; u keeps 24 significant bits however small it is, down to 2⁻⁶⁵. So every
token is drawn with its probability to within a relative 1e-4 as long as that is above 1e-15 (of an inverse CDF in
float32, everything below 6e-8 would be lost). Log-probabilities are within ``logp_bound`` of the exact ones.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from node.kernels.dispatch import is_for_triton
from node.kernels.drawing.draw_keys import BLOCK, BLOCK_DRAWS, DrawKeys

_WORD: Final = 0xFFFFFFFF
_ROUNDS: Final = 10
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_LARGEST_UNIFORM: Final = 1 - 2.0**-24  # 1 itself would make E infinite
_SERIES_BELOW: Final = 2.0**-5


def keyed_draw(logits: Tensor, temperature: float, keys: DrawKeys) -> tuple[Tensor, Tensor]:
    """Returns tokens (n,) int64 and their log-probabilities (n,) float32 in nats, drawn from ``logits`` (n, V).

    Logits may have any floating dtype and be −∞; nothing is rounded to their dtype. A row with a NaN, or without any
    finite logit, gets an arbitrary token below V and the log-probability NaN. On a GPU two kernels read the logits once
    and one block of each row again, no temporary has the size of the logits, and nothing waits for the device.
    """
    if temperature < 0:
        raise ValueError(f"the temperature is {temperature}: at least 0")
    if not 0 < logits.shape[1] < BLOCK_DRAWS:
        raise ValueError(f"a vocabulary of {logits.shape[1]}: from 1 to 2^31 - 1")
    if is_for_triton(logits.device):
        from node.kernels.drawing import triton_draw

        return triton_draw.draw_on_device(logits, temperature, keys)
    return torch_keyed_draw(logits, temperature, keys)


def logp_bound(largest_logit: float) -> float:
    """Returns how far a log-probability may be from the exact one, for logits / temperature of this magnitude."""
    return 1e-5 + 2.0**-22 * largest_logit


def torch_keyed_draw(logits: Tensor, temperature: float, keys: DrawKeys) -> tuple[Tensor, Tensor]:
    """The same in plain torch operations, float32 throughout. Memory: some copies of the logits in float32."""
    rows, vocabulary = logits.shape
    z = logits.float() / (temperature or 1.0)
    width = min(BLOCK, vocabulary)
    blocks = -(-vocabulary // width)
    z = torch.nn.functional.pad(z, (0, blocks * width - vocabulary), value=-torch.inf).view(rows, blocks, width)
    peaks = z.amax(2)  # (n, blocks)
    sums = torch.exp(z - peaks[..., None]).nan_to_num(0.0).sum(2)  # a block of −∞ alone would give NaN
    peak = peaks.amax(1, keepdim=True)
    masses = sums * torch.exp(peaks - peak)  # (n, blocks)
    if temperature == 0:
        block = peaks.argmax(1)
    else:
        block = _race(masses, torch.arange(blocks, device=z.device) + BLOCK_DRAWS, keys)
    inner = z[torch.arange(rows, device=z.device), block]  # (n, width)
    if temperature == 0:
        lane = inner.argmax(1)
    else:
        counters = block[:, None] * width + torch.arange(width, device=z.device)
        lane = _race(torch.exp(inner - inner.amax(1, keepdim=True)), counters, keys)
    chosen = inner.gather(1, lane[:, None])[:, 0]
    logps = (chosen - peak[:, 0] - masses.sum(1).log()).clamp_(max=0)
    return (block * width + lane).clamp_(max=vocabulary - 1), logps


def _race(weights: Tensor, counters: Tensor, keys: DrawKeys) -> Tensor:
    """Returns the index (n,) of the winner of each row of ``weights`` (n, k); ``counters`` is (k,) or (n, k)."""
    return (weights / _exponentials(counters.expand_as(weights), keys)).argmax(1)


def _exponentials(counters: Tensor, keys: DrawKeys) -> Tensor:
    """Returns independent exponentials of rate 1 (n, k) float32, for counters (n, k)."""
    low, high = philox_words(counters, keys)
    u = high.float() * 2.0**-32 + (low.float() + 0.5) * 2.0**-64
    u = u.clamp(max=_LARGEST_UNIFORM)
    series = u * (1 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4))))
    return torch.where(u < _SERIES_BELOW, series, -torch.log(1 - u))


def philox_words(counters: Tensor, keys: DrawKeys) -> tuple[Tensor, Tensor]:
    """Returns the first two words of Philox4x32-10 (n, k), as int64 below 2^32, for first words (n, k)."""
    seed, completions = keys.seed, keys.completions[:, None]
    c0, c1 = counters & _WORD, keys.steps[:, None] & _WORD
    c2, c3 = completions & _WORD, (completions >> 32) & _WORD
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(_ROUNDS):
        one, two = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2  # modulo 2^64
        c0, c1 = ((two >> 32) & _WORD) ^ c1 ^ k0, two & _WORD
        c2, c3 = ((one >> 32) & _WORD) ^ c3 ^ k1, one & _WORD
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1
