"""The head: its kernels against torch, values and gradients against float64, its time against its matrix products."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from scripts.bench.gpu.bench import Bench, largest_difference

FLOAT32: Final = 5e-5  # of a log-probability or an entropy, relative to the largest
ROUNDING: Final = 2.0**-7  # of a gradient, relative to the magnitudes it is a sum of; ``bf16_logps`` says why
KERNEL_ROUNDING: Final = 2.0**-7  # one unit in the last place of bf16: both paths round, at different last bits
HIDDEN: Final = 896
VOCABULARY: Final = 151_936


def head(bench: Bench) -> None:
    _kernels(bench)
    _values_and_gradients(bench)
    _time(bench)


def _kernels(bench: Bench) -> None:
    from node.kernels.head.bf16_logps import torch_fold, torch_slope_of
    from node.kernels.head.slopes import Slopes
    from node.kernels.head.triton_blocks import fold, slope_of

    rows, width = bench.at_scale(tiny=(3, 300), quick=(512, 8192), full=(512, 8192))
    products = 4 * torch.randn(rows, width, device=bench.device)
    running = torch.randn(3, rows, device=bench.device).abs()
    expected_running = running.clone()
    p, decay = fold(running, products, None, 1.25)
    expected_p, expected_decay = torch_fold(expected_running, products.clone(), None, 1.25)
    bench.check("fold: running sums", _relative(running, expected_running), FLOAT32)
    bench.check("fold: exp(z − peak)", largest_difference(p, expected_p), KERNEL_ROUNDING)
    bench.check("fold: decay", largest_difference(decay, expected_decay), FLOAT32)
    targets = torch.randint(width, (rows,), device=bench.device)
    lse = (1.25 * products).logsumexp(1)
    slopes = Slopes(lse, running[1], targets, running[2], running[0])
    got, wanted = (each(products, None, 0, 1.25, slopes) for each in (slope_of, torch_slope_of))
    bench.check("slope: relative to the largest", _relative(got, wanted), KERNEL_ROUNDING)


def _values_and_gradients(bench: Bench) -> None:
    from node.kernels import linear_logp

    n, v, d = bench.at_scale(tiny=(5, 70, 8), quick=(512, 20_000, 256), full=(1000, 20_000, 256))
    hidden = torch.randn(n, d, device=bench.device).bfloat16().requires_grad_()
    weight = (3 * d**-0.5 * torch.randn(v, d, device=bench.device)).bfloat16().requires_grad_()
    targets = torch.randint(v, (n,), device=bench.device)
    g, e = torch.randn(2, n, device=bench.device)
    dense, linear_logp.DENSE_LOGITS = linear_logp.DENSE_LOGITS, 0  # the blocks, at whatever size
    try:
        logps, entropies = linear_logp.linear_logps(hidden, weight, targets)
        found = {"g": _gradients((logps * g).sum(), hidden, weight)}
        logps, entropies = linear_logp.linear_logps(hidden, weight, targets)
        found["g and e"] = _gradients((logps * g + entropies * e).sum(), hidden, weight)
    finally:
        linear_logp.DENSE_LOGITS = dense
    exact_hidden, exact_weight = (x.detach().double().requires_grad_() for x in (hidden, weight))
    log_p = (exact_hidden @ exact_weight.T).log_softmax(1)
    p = log_p.exp()
    exact_logps, exact_entropies = log_p.gather(1, targets[:, None])[:, 0], -(p * log_p).sum(1)
    bench.check("log-probabilities", _relative(logps, exact_logps), FLOAT32)
    bench.check("entropies", _relative(entropies, exact_entropies), FLOAT32)
    with torch.no_grad():
        of_logps = g.abs()[:, None] * (functional.one_hot(targets, v) + p)
        of_both = of_logps + e.abs()[:, None] * p * (log_p + exact_entropies[:, None]).abs()
    losses = {"g": (exact_logps * g).sum(), "g and e": (exact_logps * g + exact_entropies * e).sum()}
    for name, slope in (("g", of_logps), ("g and e", of_both)):
        exact = torch.autograd.grad(losses[name], (exact_hidden, exact_weight), retain_graph=True)
        magnitudes = (slope @ exact_weight.abs(), slope.T @ exact_hidden.abs())
        # The interpreter truncates where a GPU rounds.
        bound = bench.at_scale(tiny=2 * ROUNDING, quick=ROUNDING, full=ROUNDING)
        for what, got, wanted, magnitude in zip(("hidden", "weight"), found[name], exact, magnitudes, strict=True):
            worst = ((got.double() - wanted).abs() / (magnitude + 1e-30)).max()
            bench.check(f"gradient of {what} from {name}", float(worst.detach()), bound)


def _gradients(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, inputs)


def _relative(got: Tensor, wanted: Tensor) -> float:
    return largest_difference(got, wanted) / float(1 + wanted.detach().abs().max())


def _time(bench: Bench) -> None:
    from node.kernels.linear_logp import linear_logps

    n = bench.at_scale(tiny=8, quick=4096, full=16_384)
    v, d = bench.at_scale(tiny=(500, 16), quick=(VOCABULARY, HIDDEN), full=(VOCABULARY, HIDDEN))
    hidden = torch.randn(n, d, device=bench.device).bfloat16().requires_grad_()
    weight = (d**-0.5 * torch.randn(v, d, device=bench.device)).bfloat16().requires_grad_()
    targets, g = torch.randint(v, (n,), device=bench.device), torch.randn(n, device=bench.device)

    def trained() -> None:
        torch.autograd.grad((linear_logps(hidden, weight, targets)[0] * g).sum(), (hidden, weight))

    def frozen() -> None:
        torch.autograd.grad((linear_logps(hidden, weight.detach(), targets)[0] * g).sum(), hidden)

    one = 2.0 * n * v * d
    bench.time(f"trained head, {n} tokens", trained, flops=4 * one)
    bench.time(f"frozen head, {n} tokens", frozen, flops=2 * one)
    bench.figure("memory of the trained head, its gradients included", bench.peak_bytes_of(trained), "B")
    few = bench.at_scale(tiny=8, quick=2048, full=2048)  # plain torch holds (n, V) several times

    def plain() -> None:
        log_p = functional.linear(hidden[:few], weight).float().log_softmax(-1)
        loss = (log_p.gather(1, targets[:few, None])[:, 0] * g[:few]).sum()
        torch.autograd.grad(loss, (hidden, weight))

    bench.time(f"plain torch, bf16 logits, {few} tokens", plain, flops=3 * 2.0 * few * v * d)
