"""Log-probability of each target token and entropy of its distribution, computed directly from the hidden states.

    z = (hidden · weightᵀ + bias) / temperature        logp_i    = z_i,target − lse_i
    lse_i = log Σ_v exp z_iv                           entropy_i = lse_i − Σ_v p_iv z_iv,   p_iv = exp(z_iv − lse_i)

Unless they are few, the ``(N, V)`` logits never exist as a whole: they are computed block by block with an online
softmax (Milakov and Gimelshein, arXiv:1805.02867), and computed again for the backward pass. With ``g`` and ``e`` the
gradients of logps and entropies,

    ∂/∂z_iv = g_i (δ_v,target − p_iv) − e_i p_iv (log p_iv + entropy_i)

The gradient from ``g`` to ``hidden``, ``g_i (w_target − Σ_v p_iv w_v)``, needs only the expected row of ``weight``,
which the forward pass accumulates as attention accumulates values. So if ``weight`` is frozen and no gradient reaches
the entropies, nothing is computed twice. In this the kernel departs from chunks with recomputation.

On a GPU, bf16 inputs are multiplied as such, with float32 sums (``node.kernels.head``); everything else is float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from node.kernels.dispatch import is_gpu
from node.kernels.head.bf16_logps import Bf16Logps
from node.kernels.head.blocks import CPU_BLOCK, block_shape_for
from node.kernels.products import products_for

DENSE_LOGITS = 1 << 20
"""Up to this many logits (4 MiB of float32) are held whole: blocks would save nothing and cost a recomputation."""
BLOCK_TOKENS, BLOCK_VOCABULARY = CPU_BLOCK


def linear_logps(
    hidden: Tensor,  # (N, D)
    weight: Tensor,  # (V, D)
    targets: Tensor,  # (N,) integers
    bias: Tensor | None = None,  # (V,)
    *,
    temperature: float = 1.0,
    vocabulary: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of ``targets`` and entropies in nats, both ``(N,)``, under softmax(logits / temperature).

    ``vocabulary``: the softmax is over the first so many rows of ``weight``, by default all. Rows after them are
    padding, which no token has: nothing is computed for them, and their gradient is zero.

    Guarantees:
    - Differentiable once through both outputs to ``hidden``, ``weight`` and ``bias``. A gradient that is not needed is
      not computed.
    - Logits, sums and outputs are float32 (float64 if an input is), also under autocast; gradients have the dtype of
      their input. On a GPU, bf16 inputs are multiplied as bf16 with float32 sums, within the bounds that
      ``node.kernels.head.bf16_logps`` states.
    - Beyond inputs and their gradients, memory is O(N·D) and a few blocks of logits, however large N·V: 4 MiB each on a
      CPU, an eighth of the free memory together on a GPU.
    - No log-probability is above 0 and no entropy below 0, not even by rounding.

    Raises ValueError for shapes that do not match and for targets outside the vocabulary.
    """
    words = len(weight) if vocabulary is None else vocabulary
    _check(hidden, weight, targets, bias, temperature, words)
    with torch.autocast(hidden.device.type, enabled=False):
        targets = targets.long()
        small = 0 < len(hidden) * words <= DENSE_LOGITS
        result: tuple[Tensor, Tensor]
        if len(hidden) and not small and is_gpu(hidden.device) and hidden.dtype == weight.dtype == torch.bfloat16:
            result = Bf16Logps.apply(hidden, weight, targets, bias, temperature, words)  # type: ignore[no-untyped-call]
            return result
        dtype = torch.promote_types(torch.promote_types(hidden.dtype, weight.dtype), torch.float32)
        hidden = hidden.to(dtype)
        bias = None if bias is None else bias.to(dtype)
        if temperature != 1.0:
            hidden = hidden / temperature
            bias = None if bias is None else bias / temperature
        if small:
            if words < len(weight):
                weight, bias = weight[:words], None if bias is None else bias[:words]
            result = _DenseLogps.apply(hidden, weight.to(dtype), targets, bias)  # type: ignore[no-untyped-call]
        else:
            result = _BlockedLogps.apply(hidden, weight, targets, bias, words)  # type: ignore[no-untyped-call]
        return result


def _check(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, temperature: float, words: int
) -> None:
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(f"hidden {tuple(hidden.shape)} and weight {tuple(weight.shape)} must be (N, D) and (V, D)")
    if targets.shape != hidden.shape[:1] or targets.dtype.is_floating_point:
        raise ValueError(f"targets must be {hidden.shape[0]} integers, got {tuple(targets.shape)} of {targets.dtype}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have shape ({weight.shape[0]},), got {tuple(bias.shape)}")
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    if not 0 < words <= len(weight):
        raise ValueError(f"a vocabulary of {words}, and {len(weight)} rows of weight")
    if len(targets):
        low, high = torch.stack(torch.aminmax(targets)).tolist()  # read at once: the host waits for it
        if low < 0 or high >= words:
            raise ValueError(f"targets span [{low}, {high}], outside the vocabulary [0, {words})")


class _DenseLogps(torch.autograd.Function):
    """All logits in one tensor; their softmax is kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        product = products_for(hidden.device, hidden.dtype).plain  # x · wᵀ + b
        log_p = product(hidden, weight, bias).log_softmax(1)  # (N, V)
        p = log_p.exp()
        entropies = -(p * log_p).sum(1)
        ctx.save_for_backward(hidden, weight, targets, log_p, p, entropies)
        return log_p.gather(1, targets[:, None])[:, 0], entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor | None, e: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, log_p, p, entropies = ctx.saved_tensors
        needs_hidden, needs_weight, _, needs_bias = ctx.needs_input_grad
        g = torch.zeros_like(entropies) if g is None else g
        slope = p * -g[:, None]  # ∂/∂z, (N, V)
        if e is not None:
            slope -= e[:, None] * p * (log_p + entropies[:, None])
        slope.scatter_add_(1, targets[:, None], g[:, None])
        product = products_for(hidden.device, hidden.dtype).plain
        return (
            product(slope, weight.T, None) if needs_hidden else None,
            product(slope.T, hidden.T, None) if needs_weight else None,
            None,
            slope.sum(0) if needs_bias else None,
        )


class _BlockedLogps(torch.autograd.Function):
    """Outer loop over the vocabulary: each row of ``weight`` is read, and its gradient written, once in each pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, words: int
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        product = products_for(hidden.device, hidden.dtype).plain  # x · wᵀ + b
        running = hidden.new_zeros(3, len(hidden), 1)
        running[0] = torch.finfo(hidden.dtype).min
        expected = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        block_tokens, block_vocabulary = _block_shape(hidden.device)
        for vocabulary in _blocks(words, block_vocabulary):
            w = weight[vocabulary].to(hidden.dtype)  # (v, D)
            b = None if bias is None else bias[vocabulary]
            for tokens in _blocks(len(hidden), block_tokens):
                p, decay = _fold(running[:, tokens], product(hidden[tokens], w, b))
                if expected is not None:
                    expected[tokens].mul_(decay).add_(product(p, w.T, None))
        peak, total, moment = running
        lse, entropies = peak + total.log(), total.log() - moment / total  # (N, 1)
        logps = (hidden * weight[targets]).sum(1) - lse[:, 0]
        if bias is not None:
            logps += bias[targets]
        if expected is not None:
            expected /= total
        ctx.save_for_backward(hidden, weight, targets, bias, lse, entropies, expected)
        ctx.words = words
        return logps.clamp_(max=0), entropies[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, logp_grad: Tensor | None, e: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, bias, lse, entropies, expected = ctx.saved_tensors
        needs_hidden, needs_weight, _, needs_bias, _ = ctx.needs_input_grad
        words = ctx.words
        g = hidden.new_zeros(len(hidden), 1) if logp_grad is None else logp_grad[:, None]
        hidden_grad = weight_grad = bias_grad = None
        if needs_hidden:
            hidden_grad = g * (weight[targets] - expected if e is None else weight[targets])
        if needs_weight:
            weight_grad = torch.empty_like(weight)
            weight_grad[words:] = 0
        if needs_bias:
            bias_grad = torch.zeros_like(bias).index_add_(0, targets, g[:, 0])
        if e is None and not (needs_weight or needs_bias):
            return hidden_grad, None, None, None, None

        g_hidden = g * hidden
        # Except for the target's δ, ∂/∂z is −slope · scale. Without e the slope is p: g stays out of the large matrix.
        scale, scaled = (g, g_hidden) if e is None else (torch.ones_like(g), hidden)
        product = products_for(hidden.device, hidden.dtype).plain
        block_tokens, block_vocabulary = _block_shape(hidden.device)
        for vocabulary in _blocks(words, block_vocabulary):
            w = weight[vocabulary].to(hidden.dtype)  # (v, D)
            inside = ((targets >= vocabulary.start) & (targets < vocabulary.stop)).nonzero()[:, 0]
            w_grad = torch.zeros_like(w).index_add_(0, targets[inside] - vocabulary.start, g_hidden[inside])
            for tokens in _blocks(len(hidden), block_tokens):
                slope = product(w, hidden[tokens], -lse[tokens, 0])  # log p, (v, n)
                if bias is not None:
                    slope += bias[vocabulary, None]
                if e is None:
                    slope.exp_()
                else:  # g p + e p (log p + entropy)
                    factor = (slope + entropies[tokens, 0]).mul_(e[tokens]).add_(g[tokens, 0])
                    slope.exp_().mul_(factor)
                if weight_grad is not None:
                    w_grad -= product(slope, scaled[tokens].T, None)
                if bias_grad is not None:
                    bias_grad[vocabulary] -= (slope @ scale[tokens])[:, 0]
                if hidden_grad is not None and e is not None:
                    hidden_grad[tokens] -= product(slope.T, w.T, None)
            if weight_grad is not None:
                weight_grad[vocabulary] = w_grad
        return hidden_grad, weight_grad, None, bias_grad, None


def _fold(running: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Adds one block of logits to the running softmax; overwrites ``z``.

    ``running`` is peak, Σ exp(z − peak) and Σ exp(z − peak) (z − peak), each (n, 1). Returns exp(z − peak), (n, v), and
    the factor that brings sums taken under the old peak to the new one.
    """
    peak, total, moment = running
    new_peak = torch.maximum(peak, z.amax(1, keepdim=True))
    drop = peak - new_peak
    decay = drop.exp()
    p = z.sub_(new_peak).exp()
    moment.addcmul_(drop, total).mul_(decay).add_(z.mul_(p).sum(1, keepdim=True))
    total.mul_(decay).add_(p.sum(1, keepdim=True))
    peak.copy_(new_peak)
    return p, decay


def _block_shape(device: torch.device) -> tuple[int, int]:
    return block_shape_for(device) if is_gpu(device) else (BLOCK_TOKENS, BLOCK_VOCABULARY)


def _blocks(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))
