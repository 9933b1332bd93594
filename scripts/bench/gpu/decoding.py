"""The kernels of a decode step: against torch, in a captured graph, and their times against the bytes they read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor
from torch.nn import functional

from scripts.bench.gpu.bench import Bench, largest_difference

if TYPE_CHECKING:
    from node.kernels.decoding.triton_attention import Rows

HEADS: Final = ((7, 64), (1, 64), (4, 128), (7, 128))  # queries a key-value head, size: Qwen2.5, Pythia, Llama, 7 B
DTYPES: Final = (torch.bfloat16, torch.float16, torch.float32)
KV_HEADS, QUERIES, SIZE, HIDDEN, INNER = 2, 7, 64, 896, 4864  # Qwen2.5-0.5B


def decoding(bench: Bench) -> None:
    from node.kernels.decoding.agreement import disagreement

    shapes = bench.at_scale(tiny=((2, 16),), quick=HEADS, full=HEADS)
    for (queries, size), dtype in product(shapes, bench.at_scale(tiny=DTYPES[:1], quick=DTYPES, full=DTYPES)):
        name = f"{queries} queries of {size}, {str(dtype).removeprefix('torch.')}: against torch"
        bench.same(name, disagreement(queries, size, bench.device, dtype), None)
    if bench.device.type == "cuda":
        _captured(bench)
    _time(bench)


def _batch(bench: Bench, prompts: int, completions: int, prompt: int, own: int) -> tuple[Tensor, Rows]:
    """Returns heads and rows of a batch whose completions have ``own`` tokens each, after shared prompts."""
    from node.kernels.decoding.triton_attention import Rows

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=bench.device).bfloat16()

    rows = prompts * completions
    places = torch.arange(prompts, device=bench.device, dtype=torch.int32).repeat_interleave(completions)
    keys, values = (normal(rows, KV_HEADS, own + 16, SIZE) for _ in range(2))
    prompt_keys, prompt_values = (normal(prompts, KV_HEADS, prompt, SIZE) for _ in range(2))
    positions = torch.full((rows,), prompt + own - 1, device=bench.device)
    lengths = torch.full((prompts,), prompt, device=bench.device, dtype=torch.int32)
    seats = torch.arange(rows, device=bench.device, dtype=torch.int32)
    held = Rows(keys, values, torch.zeros_like(seats), seats, positions, prompt_keys, prompt_values, places, lengths)
    return normal(rows, KV_HEADS, QUERIES + 2, SIZE), held


def _captured(bench: Bench) -> None:
    """A captured step reads the positions that are in their tensor when it is replayed."""
    from node.kernels.decoding.triton_attention import attend, rotate_and_keep

    heads, rows = _batch(bench, 4, 2, 40, 9)
    table = torch.ones(200, SIZE, device=bench.device)

    def step() -> Tensor:
        again = heads.clone()
        rotate_and_keep(again, None, table, 1e-6, rows)
        mixed = attend(again, rows, 132)
        rows.positions.add_(1)
        return mixed

    step()
    rows.positions.sub_(1)
    expected = torch.stack([step() for _ in range(3)])
    rows.positions.sub_(3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mixed = step()
    found = list[Tensor]()
    for _ in range(3):
        graph.replay()
        found.append(mixed.clone())
    bench.check("a captured graph", largest_difference(torch.stack(found), expected), 0.0)
    _recorded_again(bench, step)


def _recorded_again(bench: Bench, step: Callable[[], Tensor]) -> None:
    """The engine's recorder: again after all of its graphs are gone; draws go on after a recording that failed."""
    from node.engines.lean.step_graphs import CudaRecorder

    recorder = CudaRecorder()
    for name in ("recorded", "recorded after the first is gone"):
        recorded = recorder.record(step)
        recorded.replay()
        bench.same(name, bool(recorded.result.isfinite().all()), True)
        del recorded
        recorder.forget()
    refused = ""
    try:
        recorder.record(lambda: torch.ones(2, device=bench.device) * float(step().sum()))
    except RuntimeError as error:
        refused = str(error).splitlines()[0]
    bench.same(f"what makes the host wait is refused ({refused})", bool(refused), True)
    drawn = torch.randn(1000, device=bench.device)
    bench.same("draws after a recording that failed", bool(drawn.std() > 0.5), True)
    recorder.record(step).replay()


def _time(bench: Bench) -> None:
    from node.kernels.decoding.triton_attention import attend

    is_cuda = bench.device.type == "cuda"
    processors = torch.cuda.get_device_properties(bench.device).multi_processor_count if is_cuda else 1
    copies = bench.at_scale(tiny=1, quick=4, full=16)
    for prompts, completions in bench.at_scale(tiny=((1, 2),), quick=((32, 8),), full=((4, 8), (32, 8), (1, 256))):
        prompt, own = bench.at_scale(tiny=(20, 5), quick=(512, 128), full=(512, 128))
        batches = [_batch(bench, prompts, completions, prompt, own) for _ in range(copies)]
        least = 4.0 * KV_HEADS * SIZE * (prompts * prompt + prompts * completions * own)
        name = f"attention, {prompts} × {completions} rows of {prompt} + {own}"
        bench.time_each(name, [partial(attend, *batch, processors) for batch in batches], bytes_moved=least)
        own_least = 4.0 * KV_HEADS * SIZE * prompts * completions * (prompt + own)
        shape = (prompts * completions, KV_HEADS, prompt + own, SIZE)
        mixings = [[heads[:, :, :-2].contiguous(), *_normals(bench, shape)] for heads, _ in batches]
        bench.time_each(
            f"the same by torch, prompts in the rows, {prompts} × {completions}",
            [partial(functional.scaled_dot_product_attention, q, k, v) for q, k, v in mixings],
            bytes_moved=own_least,
        )
    hidden, inner = bench.at_scale(tiny=(32, 48), quick=(HIDDEN, INNER), full=(HIDDEN, INNER))
    matrices = [_normals(bench, (inner, hidden)) for _ in range(copies)]
    norm = torch.ones(hidden, device=bench.device).bfloat16()
    for count in bench.at_scale(tiny=(2,), quick=(256,), full=(8, 64, 256, 1024)):
        x = torch.randn(count, hidden, device=bench.device).bfloat16()
        work = {"bytes_moved": 4.0 * inner * hidden, "flops": 4.0 * count * inner * hidden}
        ours = [partial(_gated, x, norm, gate, up) for gate, up in matrices]
        bench.time_each(f"gated half, {count} rows", ours, **work)
        by_torch = [partial(_by_torch, x, norm, gate, up) for gate, up in matrices]
        bench.time_each(f"the same by torch, {count} rows", by_torch, **work)


def _normals(bench: Bench, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    one, other = (torch.randn(shape, device=bench.device).bfloat16() for _ in range(2))
    return one, other


def _gated(x: Tensor, norm: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    from node.kernels.decoding import triton_mlp

    normed = functional.rms_norm(x, x.shape[-1:], norm, 1e-6)
    return triton_mlp.gate(normed @ gate.T, normed @ up.T, "silu")


def _by_torch(x: Tensor, norm: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    normed = functional.rms_norm(x, x.shape[-1:], norm, 1e-6)
    return functional.silu(normed @ gate.T).mul_(normed @ up.T)
