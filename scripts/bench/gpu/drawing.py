"""Tokens from logits: the kernels against the torch path, the distribution, and the time against reading the logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from scripts.bench.gpu.bench import Bench, largest_difference

if TYPE_CHECKING:
    from node.kernels.drawing.draw_keys import DrawKeys

VOCABULARY: Final = 151_936
CHI_SQUARED_BOUND: Final = 24.3  # 7 degrees of freedom: p = 0.001
RARE: Final = 1e-5


def drawing(bench: Bench) -> None:
    _against_torch(bench)
    _distribution(bench)
    if bench.device.type == "cuda":
        _captured(bench)
    _time(bench)


def _against_torch(bench: Bench) -> None:
    from node.kernels.drawing.draw_keys import DrawKeys
    from node.kernels.drawing.keyed_draw import keyed_draw, logp_bound, torch_keyed_draw

    rows = bench.at_scale(tiny=2, quick=64, full=256)
    vocabulary = bench.at_scale(tiny=5000, quick=VOCABULARY, full=VOCABULARY)
    keys = _keys(rows, bench.device, seed=1)
    for dtype in (torch.bfloat16, torch.float32):
        logits = (4 * torch.randn(rows, vocabulary, device=bench.device)).to(dtype)
        for temperature in (0.0, 0.7, 1.0):
            name = f"{str(dtype).removeprefix('torch.')}, temperature {temperature:g}"
            tokens, logps = keyed_draw(logits, temperature, keys)
            expected, _ = torch_keyed_draw(logits, temperature, keys)
            # Both round differently, so that where two tokens nearly tie the other may win: about one row in 10^5.
            bench.check(f"{name}: tokens unlike torch's", int((tokens != expected).sum()), rows // 256)
            exact = torch.log_softmax(logits.double() / (temperature or 1.0), -1).gather(1, tokens[:, None])[:, 0]
            bound = logp_bound(float(logits.abs().max()) / (temperature or 1.0))
            bench.check(f"{name}: log-probability", largest_difference(logps, exact), bound)
    order = torch.randperm(rows, device=bench.device)
    apart = DrawKeys(keys.seed, keys.completions[order], keys.steps[order])
    moved, whole = keyed_draw(logits[order], 1.0, apart), keyed_draw(logits, 1.0, keys)
    bench.same("a row elsewhere in the batch", torch.equal(moved[0], whole[0][order]), True)


def _captured(bench: Bench) -> None:
    """A captured graph draws what the steps say that are in its tensor when it is replayed."""
    from node.kernels.drawing.draw_keys import DrawKeys
    from node.kernels.drawing.keyed_draw import keyed_draw

    logits = torch.randn(8, VOCABULARY, device=bench.device)
    keys = _keys(8, bench.device, seed=4)
    expected = [keyed_draw(logits, 1.0, DrawKeys(keys.seed, keys.completions, keys.steps + n))[0] for n in range(3)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens, _ = keyed_draw(logits, 1.0, keys)
        keys.steps.add_(1)
    found = list[Tensor]()
    for _ in expected:
        graph.replay()
        found.append(tokens.clone())
    bench.same("a captured graph", torch.equal(torch.stack(found), torch.stack(expected)), True)


def _distribution(bench: Bench) -> None:
    logits = torch.tensor([0.0, 1.0, -0.5, 0.5, -1.0, 0.2, 0.1, 0.9], device=bench.device)
    rows = bench.at_scale(tiny=24, quick=1 << 18, full=1 << 20)
    counts = torch.bincount(_drawn(logits, rows), minlength=len(logits)).double()
    expected = rows * torch.softmax(logits.double(), 0)
    bench.check("chi-squared of 8 tokens", float(((counts - expected) ** 2 / expected).sum()), CHI_SQUARED_BOUND)
    rare = torch.tensor([0.0, RARE], device=bench.device).log()
    rare[0] = 0.0
    rows = bench.at_scale(tiny=8, quick=1 << 20, full=1 << 22)
    wanted = rows * RARE / (1 + RARE)
    found = float((_drawn(rare, rows) == 1).sum())
    bench.check("a rare token: deviations from its expected number", abs(found - wanted) / wanted**0.5, 5.0)


def _drawn(logits: Tensor, rows: int) -> Tensor:
    from node.kernels.drawing.keyed_draw import keyed_draw

    keys = _keys(rows, logits.device, seed=2)
    return keyed_draw(logits.expand(rows, -1), 1.0, keys)[0]


def _keys(rows: int, device: torch.device, *, seed: int) -> DrawKeys:
    from node.kernels.drawing.draw_keys import DrawKeys

    completions = torch.arange(rows, device=device)
    return DrawKeys(torch.tensor([seed], device=device), completions, torch.zeros_like(completions))


def _time(bench: Bench) -> None:
    from node.kernels.drawing.keyed_draw import keyed_draw

    for rows in bench.at_scale(tiny=(2,), quick=(256,), full=(32, 256, 1024)):
        vocabulary = bench.at_scale(tiny=500, quick=VOCABULARY, full=VOCABULARY)
        logits = torch.randn(rows, vocabulary, device=bench.device).bfloat16()
        keys = _keys(rows, bench.device, seed=3)
        least = 2.0 * rows * vocabulary
        bench.time(f"draw {rows} rows", lambda x=logits, k=keys: keyed_draw(x, 1.0, k), bytes_moved=least)  # type: ignore[misc]
        bench.time(f"draw {rows} rows by float64 sums", lambda x=logits: _by_float64_sums(x), bytes_moved=least)  # type: ignore[misc]
    extra = bench.peak_bytes_of(lambda: keyed_draw(logits, 1.0, keys))
    bench.figure("memory of a draw / the logits", extra / logits.nbytes, "")


def _by_float64_sums(logits: Tensor) -> tuple[Tensor, Tensor]:
    """What a CPU does, in torch operations: an inverse CDF."""
    logps = torch.log_softmax(logits, -1, dtype=torch.float32)
    cumulative = logps.exp().cumsum(-1, dtype=torch.float64)
    uniform = torch.rand(len(logits), 1, dtype=torch.float64, device=logits.device)
    tokens = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True).clamp_(max=logits.shape[1] - 1)
    return tokens, logps.gather(1, tokens)
