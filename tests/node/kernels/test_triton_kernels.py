"""Triton's kernels, run by its interpreter behind the public functions, agree with the references to the bit.

That they compile for GPUs, and that nothing in them rounds otherwise there: ``tests/node/gpu/test_compilers.py``.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from node.kernels import triton_bits, triton_diff
from node.kernels.sparse_update_kernels import encode_update_fast, scatter_mean_fast, sparsify_fast
from node.kernels.weight_diff_kernels import apply_diff_fast, encode_diff_fast, weights_hash_fast
from protocol.errors import IntegrityError
from protocol.weights import rice
from protocol.weights import sparsify as reference
from protocol.weights import weight_diff as diff_reference
from protocol.weights.sparse_update import encode_update
from protocol.weights.tensor_layout import TensorLayout
from tests.examples import examples

LAYOUT = TensorLayout.of({"matrix": (100, 61), "bias": (7,), "whole": (4096,), "one more": (4097,), "short": (200,)})
KINDS = ("normal", "ties", "zeros", "tiny", "one large")
Floats = NDArray[np.float32]
Patterns = NDArray[np.uint16]


def values(kind: str, size: int, seed: int) -> Floats:
    random = np.random.default_rng(seed)
    match kind:
        case "ties":
            return random.integers(-3, 4, size).astype(np.float32)
        case "zeros":
            return np.zeros(size, np.float32)
        case "tiny":
            return random.standard_normal(size, dtype=np.float32) * np.float32(1e-38)
        case "one large":
            return np.where(np.arange(size) == size // 2, np.float32(60_000), np.float32(1e-3)).astype(np.float32)
    return random.standard_normal(size, dtype=np.float32)


@pytest.mark.usefixtures("by_triton")
@pytest.mark.parametrize(("kind", "kept"), [*((kind, 64) for kind in KINDS), ("ties", 1), ("normal", 4096)])
def test_an_update_has_the_bytes_of_the_reference_and_leaves_its_residual(kind: str, kept: int) -> None:
    deltas = [values(kind, size, seed) for seed, size in enumerate(LAYOUT.sizes)]
    residuals = [values("normal", size, seed + 10) for seed, size in enumerate(LAYOUT.sizes)]
    fast = [torch.from_numpy(residual.copy()) for residual in residuals]
    blob = encode_update_fast(LAYOUT, fast, [torch.from_numpy(d) for d in deltas], decay=0.95, kept=kept)
    expected = [reference.sparsify(r, d, decay=0.95, kept=kept) for r, d in zip(residuals, deltas, strict=True)]
    assert blob == encode_update(LAYOUT, expected)
    for found, residual in zip(fast, residuals, strict=True):
        assert found.numpy().tobytes() == residual.tobytes()


@pytest.mark.usefixtures("by_triton")
@pytest.mark.parametrize("bad", [math.nan, -math.inf, 70_000.0])
def test_values_that_cannot_be_sent_are_refused(bad: float) -> None:
    delta = torch.zeros(5000)
    delta[4500] = bad
    with pytest.raises(ValueError, match="an update holds"):
        sparsify_fast(torch.zeros(5000), delta, decay=0.95, kept=64)


@pytest.mark.usefixtures("by_triton")
@pytest.mark.parametrize("peers", [1, 2, 5])
def test_the_mean_of_peers_is_that_of_the_reference(peers: int) -> None:
    updates = []
    for peer in range(peers):
        delta = values("normal", 9000, peer) * np.float32(1 + peer**2)
        updates.append(reference.sparsify(np.zeros(9000, np.float32), delta, decay=1.0, kept=32 * (1 + peer)))
    found = scatter_mean_fast(updates, torch.device("cpu"))
    assert found.numpy().tobytes() == reference.scatter_mean(updates).tobytes()


@given(st.lists(st.integers(0, 2000), max_size=70), st.integers(0, 11))
@examples(25)
def test_bits_are_packed_as_the_reference_packs_them(gaps: list[int], parameter: int) -> None:
    found = triton_bits.rice(torch.tensor(gaps, dtype=torch.int64), parameter)
    assert found == rice.rice_encode(np.array(gaps, np.int64), parameter)


def tensors(arrays: list[Patterns]) -> list[torch.Tensor]:
    return [torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) for array in arrays]


def patterns(seed: int) -> list[Patterns]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 2**16, size).astype(np.uint16) for size in LAYOUT.sizes]


def changed(base: list[Patterns], rate: float) -> list[Patterns]:
    random = np.random.default_rng(7)
    return [
        np.where(random.random(len(b)) < rate, b ^ random.integers(0, 2**16, len(b)), b).astype(b.dtype) for b in base
    ]


@pytest.mark.usefixtures("by_triton")
@pytest.mark.parametrize("rate", [0, 1e-3, 0.02, 0.6])
def test_a_diff_has_the_bytes_of_the_reference_and_leads_to_the_target(rate: float) -> None:
    base = patterns(0)
    target = changed(base, rate)
    hashes = [diff_reference.weights_hash(LAYOUT, weights) for weights in (base, target)]
    blob = encode_diff_fast(LAYOUT, tensors(base), tensors(target), base_hash=hashes[0], target_hash=hashes[1])
    assert blob == diff_reference.encode_diff(LAYOUT, base, target)
    assert apply_diff_fast(blob, LAYOUT, tensors(base), current=hashes[0]) is (rate > 0)
    assert weights_hash_fast(LAYOUT, tensors(base)) == hashes[1]


@pytest.mark.usefixtures("by_triton")
@pytest.mark.parametrize("rate", [0.02, 1])
def test_a_diff_that_does_not_lead_to_its_target_is_taken_back(rate: float) -> None:
    base = patterns(0)
    at = diff_reference.weights_hash(LAYOUT, base)
    blob = encode_diff_fast(LAYOUT, tensors(base), tensors(changed(base, rate)), base_hash=at, target_hash=bytes(32))
    with pytest.raises(IntegrityError, match="00" * 32):
        apply_diff_fast(blob, LAYOUT, tensors(base), current=at)
    assert diff_reference.weights_hash(LAYOUT, base) == at


@pytest.mark.parametrize("size", [1, 8, 4095, 4096, 4097])
def test_changes_at_both_ends_and_everywhere_are_found(size: int) -> None:
    base = torch.zeros(size, dtype=torch.int16)
    for where in ([0], [size - 1], list(range(size))):
        target = base.clone()
        target[where] = 1
        positions, zigzags = triton_diff.find_changes_on_device(base, target)
        assert positions.tolist() == where
        assert (zigzags == 2).all()
