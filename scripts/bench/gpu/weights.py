"""Sparse updates and weight diffs by Triton: to the bit what ``protocol.weights`` defines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from scripts.bench.gpu.bench import Bench

if TYPE_CHECKING:
    from protocol.weights.sparse_update import TensorSection
    from protocol.weights.sparsify import SparseTensor
    from protocol.weights.weight_diff import DiffSection

DECAY: Final = 0.95
KEPT: Final = 64
PEERS: Final = 4
CHANGED: Final = 0.02  # share of weights that differ in a diff


def sparse_updates(bench: Bench) -> None:
    from node.kernels import triton_top_k
    from protocol.weights import sparsify as reference
    from protocol.weights.sparse_update import pack_section

    for size in bench.at_scale(tiny=(4097,), quick=(4096 * 64 + 5,), full=(7, 4096, 4096 * 256 + 5)):
        random = np.random.default_rng(size)
        delta = random.standard_normal(size, dtype=np.float32) * random.lognormal(size=size).astype(np.float32)
        residual = random.standard_normal(size, dtype=np.float32)
        device_residual = torch.from_numpy(residual.copy()).to(bench.device)
        device_delta = torch.from_numpy(delta).to(bench.device)
        found = triton_top_k.sparsify_on_device(device_residual, device_delta, decay=DECAY, kept=KEPT)
        section = triton_top_k.pack_update_on_device(found)
        expected = reference.sparsify(residual, delta, decay=DECAY, kept=KEPT)
        bench.same(f"update of {size}", _plain(section), _plain(pack_section(expected)))
        bench.same(f"residual of {size}", device_residual.cpu().numpy().tobytes(), residual.tobytes())
        updates = [_update(size, peer) for peer in range(PEERS)]
        mean = triton_top_k.scatter_mean_on_device(updates, bench.device).cpu().numpy()
        bench.same(f"mean of {PEERS}, {size}", mean.tobytes(), reference.scatter_mean(updates).tobytes())
    _time_sparse_updates(bench)


def _plain(section: TensorSection | DiffSection) -> dict[str, Any]:
    """Returns a section's fields, arrays as bytes: two sections are equal where these are."""
    values = {each.name: getattr(section, each.name) for each in fields(section)}
    return {name: value.tobytes() if isinstance(value, np.ndarray) else value for name, value in values.items()}


def _update(size: int, peer: int) -> SparseTensor:
    from protocol.weights import sparsify as reference

    delta = np.random.default_rng(peer).standard_normal(size, dtype=np.float32) * np.float32(1 + peer)
    return reference.sparsify(np.zeros(size, np.float32), delta, decay=1.0, kept=KEPT)


def _time_sparse_updates(bench: Bench) -> None:
    from node.kernels.triton_top_k import pack_update_on_device, scatter_mean_on_device, sparsify_on_device

    size = bench.at_scale(tiny=5000, quick=1 << 24, full=136_134_656)  # the embedding of Qwen2.5-0.5B
    delta = torch.randn(size, device=bench.device)
    residual = torch.zeros(size, device=bench.device)
    least = 12 * size  # residual and delta read, residual written
    bench.time(
        f"sparsify {size} weights",
        lambda: sparsify_on_device(residual, delta, decay=DECAY, kept=KEPT),
        bytes_moved=least,
    )
    sparse = sparsify_on_device(residual, delta, decay=DECAY, kept=KEPT)
    bench.time(f"pack {len(sparse.indices)} entries", lambda: pack_update_on_device(sparse))
    host = sparse.host()
    bench.time(
        f"mean of {PEERS} updates of {size}",
        lambda: scatter_mean_on_device([host] * PEERS, bench.device),
        bytes_moved=4 * size,
    )


def weight_diffs(bench: Bench) -> None:
    from node.kernels import triton_diff
    from protocol.weights import weight_diff as reference

    for size in bench.at_scale(tiny=(4097,), quick=(4096 * 64 + 5,), full=(8, 4095, 4096 * 256 + 5)):
        for rate in (0.0, CHANGED, 0.6):
            base, target = _patterns(size, rate)
            old, new = (torch.from_numpy(each.view(np.int16)).to(bench.device) for each in (base, target))
            found = triton_diff.pack_diff_on_device(old, new)
            bench.same(f"diff of {size}, {rate:g} changed", _plain(found), _plain(reference.pack_tensor(base, target)))
            positions, zigzags = triton_diff.find_changes_on_device(old, new)
            planes = torch.stack([zigzags & 0xFF, zigzags >> 8]).to(torch.uint8)
            moved = old.clone()
            triton_diff.add_steps_on_device(moved, positions, planes, 1)
            bench.same(f"applied, {size}, {rate:g} changed", torch.equal(moved, new), True)
            triton_diff.add_steps_on_device(moved, positions, planes, -1)
            bench.same(f"taken back, {size}, {rate:g} changed", torch.equal(moved, old), True)
    _time_weight_diffs(bench)


def _patterns(size: int, rate: float) -> Sequence[np.ndarray[tuple[int, ...], np.dtype[np.uint16]]]:
    random = np.random.default_rng(size)
    base = random.integers(0, 2**16, size).astype(np.uint16)
    changed = random.random(size) < rate
    return base, np.where(changed, base ^ random.integers(1, 2**16, size), base).astype(np.uint16)


def _time_weight_diffs(bench: Bench) -> None:
    from node.kernels.triton_diff import add_steps_on_device, find_changes_on_device, pack_diff_on_device

    size = bench.at_scale(tiny=5000, quick=1 << 24, full=136_134_656)
    base = torch.randint(-(2**15), 2**15, (size,), dtype=torch.int16, device=bench.device)
    target = torch.where(torch.rand(size, device=bench.device) < CHANGED, base + 1, base)
    bench.time(f"find changes of {size}", lambda: find_changes_on_device(base, target), bytes_moved=4 * size)
    bench.time(f"pack a diff of {size}, compression on the CPU included", lambda: pack_diff_on_device(base, target))
    positions, zigzags = find_changes_on_device(base, target)
    planes = torch.stack([zigzags & 0xFF, zigzags >> 8]).to(torch.uint8)
    bench.time(
        f"apply {len(positions)} changes",
        lambda: add_steps_on_device(base, positions, planes, 1),
        bytes_moved=len(positions) * (8 + 2 + 2 * 32),  # a scattered weight costs a sector of 32 bytes each way
    )
