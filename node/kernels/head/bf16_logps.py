"""The head with bf16 products and float32 sums: the loop over blocks of ``linear_logp``, for tensor cores.

Matrix products are the vendor's library's, with bf16 operands and a float32 result; what lies between two products of a
block is one kernel on a GPU (``triton_blocks``) and a few torch operations elsewhere. A trained head costs four
products of 2 N V D operations, a frozen one two.

**Accuracy.** Logits, log-probabilities and entropies are float32 sums of exact products: as far from the exact ones as
float32 is. p or ∂/∂z is rounded to bf16 before its product and the gradient after it, each by a relative 2⁻⁸ at most,
so that a gradient is within 2⁻⁷ of the exact one, relative to the sum of the magnitudes that it is made of. Neither
1 − p of a target nor the largest p of a row is a difference of rounded numbers.

**Estimate for an H100** at hidden 896, vocabulary 151,936 and a body of 358 M weights (Qwen2.5-0.5B), for each token:
body 6 · 358 M = 2.1 GFLOP, head 8 · 136 M = 1.1 GFLOP. Beside its products the head writes and reads each logit as
float32 twice and as bf16 four times, 24 B · 151,936 = 3.6 MB. At 600 TFLOP/s and 3 TB/s: body 3.6 µs, head 1.8 + 1.2
= 3.0 µs, less where blocks stay in the cache. Plain torch operations move about 60 B a logit, 3.0 µs instead of 1.2. So
fused kernels between the library's products suffice; a kernel that keeps logits on the chip, as Apple's cut cross
entropy (arXiv 2411.09009), would save at most 1.2 µs and would have to reach the library's speed in its products.
``scripts/bench/gpu`` measures both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from node.kernels.dispatch import is_for_triton
from node.kernels.head.blocks import block_shape_for
from node.kernels.head.slopes import Slopes
from node.kernels.products import float32_product

# (running (3, n), products (n, v), bias (v,) or None, 1 / T) → exp(z − new peak) (n, v) bf16, decay (n, 1)
Fold = Callable[[Tensor, Tensor, Tensor | None, float], tuple[Tensor, Tensor]]
# (products (n, v), bias, first word of the block, 1 / T, slopes) → ∂/∂(z T) (n, v) bf16
SlopeOf = Callable[[Tensor, Tensor | None, int, float, Slopes], Tensor]


class Bf16Logps(torch.autograd.Function):
    """``linear_logp._BlockedLogps`` for bf16 ``hidden`` (N, D) and ``weight`` (V, D), of which the first ``words`` rows
    are tokens; targets (N,) int64."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, temperature: float, words: int
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        fold, _ = _between_products(hidden.device)
        inverse = 1.0 / temperature
        # Of each token, over the blocks so far: the peak, Σ exp(z − peak), Σ exp(z − peak) (z − peak).
        running = torch.zeros(3, len(hidden), dtype=torch.float32, device=hidden.device)
        running[0] = torch.finfo(torch.float32).min
        expected = torch.zeros_like(hidden, dtype=torch.float32) if ctx.needs_input_grad[0] else None
        for block, tokens in _blocks(hidden, words):
            w = weight[block]
            p, decay = fold(
                running[:, tokens], float32_product(hidden[tokens], w.T), None if bias is None else bias[block], inverse
            )
            if expected is not None:
                expected[tokens].mul_(decay).add_(float32_product(p, w))
        peak, total, moment = running
        lse, entropies = peak + total.log(), (total.log() - moment / total).clamp_(min=0)
        at_targets = weight[targets]
        z = (hidden.float() * at_targets).sum(1)
        logps = ((z if bias is None else z + bias[targets]) * inverse - lse).clamp_(max=0)
        # ∂ logp / ∂ hidden
        gap = None if expected is None else (at_targets - expected.div_(total[:, None])).mul_(inverse)
        ctx.save_for_backward(hidden, weight, targets, bias, lse, entropies, gap)
        ctx.inverse, ctx.words = inverse, words
        return logps, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor | None, e: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, bias, lse, entropies, gap = ctx.saved_tensors
        needs_hidden, needs_weight, _, needs_bias, _, _ = ctx.needs_input_grad
        _, slope_of = _between_products(hidden.device)
        hidden_grad = None
        if needs_hidden:
            hidden_grad = torch.zeros_like(gap) if g is None or e is not None else gap * g[:, None]
        if e is None and not (needs_weight or needs_bias):
            return None if hidden_grad is None else hidden_grad.to(hidden.dtype), None, None, None, None, None

        slopes = Slopes(lse, entropies, targets, g, e)
        weight_grad = torch.empty_like(weight) if needs_weight else None
        if weight_grad is not None:
            weight_grad[ctx.words :] = 0
        bias_grad = torch.zeros(len(weight), dtype=torch.float32, device=hidden.device) if needs_bias else None
        of_words: Tensor | None = None  # the gradient of one block of ``weight``, in float32
        for words, tokens in _blocks(hidden, ctx.words):
            w, h = weight[words], hidden[tokens]
            of_bias = None if bias is None else bias[words]
            slope = slope_of(float32_product(h, w.T), of_bias, words.start, ctx.inverse, slopes.rows(tokens))
            if weight_grad is not None:
                part = float32_product(slope.T, h)
                of_words = part if tokens.start == 0 or of_words is None else of_words.add_(part)
                if tokens.stop == len(hidden):
                    weight_grad[words] = of_words
            if bias_grad is not None:
                bias_grad[words].add_(slope.sum(0, dtype=torch.float32))
            if hidden_grad is not None and e is not None:
                hidden_grad[tokens].add_(float32_product(slope, w))
        return (
            None if hidden_grad is None else hidden_grad.to(hidden.dtype),
            weight_grad,
            None,
            None if bias_grad is None else bias_grad.to(bias.dtype),
            None,
            None,
        )


def _between_products(device: torch.device) -> tuple[Fold, SlopeOf]:
    if is_for_triton(device):
        from node.kernels.head import triton_blocks

        return triton_blocks.fold, triton_blocks.slope_of
    return torch_fold, torch_slope_of


def torch_fold(running: Tensor, products: Tensor, bias: Tensor | None, inverse: float) -> tuple[Tensor, Tensor]:
    """Adds one block of logits to the running softmax, in place; may overwrite ``products``. See ``Fold``."""
    peak, total, moment = running
    z = (products if bias is None else products.add_(bias)).mul_(inverse)
    new_peak = torch.maximum(peak, z.amax(1))
    drop = peak - new_peak
    decay = drop.exp()
    p = z.sub_(new_peak[:, None]).exp()
    moment.addcmul_(drop, total).mul_(decay).add_(z.mul_(p).sum(1))
    total.mul_(decay).add_(p.sum(1))
    peak.copy_(new_peak)
    return p.bfloat16(), decay[:, None]


def torch_slope_of(products: Tensor, bias: Tensor | None, first: int, inverse: float, slopes: Slopes) -> Tensor:
    """∂/∂z = g (δ − p) − e p (log p + entropy), times 1 / T. See ``SlopeOf``."""
    z = (products if bias is None else products + bias) * inverse
    log_p = z - slopes.lse[:, None]
    p = log_p.exp()
    slope = torch.zeros_like(p)
    if slopes.logp_grad is not None:
        words = torch.arange(first, first + products.shape[1], device=products.device)
        slope += slopes.logp_grad[:, None] * ((slopes.targets[:, None] == words).to(p.dtype) - p)
    if slopes.entropy_grad is not None:
        slope -= slopes.entropy_grad[:, None] * p * (log_p + slopes.entropies[:, None])
    return slope.mul_(inverse).bfloat16()


def _blocks(hidden: Tensor, vocabulary: int) -> Iterator[tuple[slice, slice]]:
    """Yields words and tokens of each block; all tokens of the same words follow each other."""
    tokens, words = block_shape_for(hidden.device)
    for first_word in range(0, vocabulary, words):
        for first in range(0, len(hidden), tokens):
            yield (
                slice(first_word, min(first_word + words, vocabulary)),
                slice(first, min(first + tokens, len(hidden))),
            )
