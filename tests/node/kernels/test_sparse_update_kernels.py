"""The fast sparse update gives the reference's bytes, leaves the reference's residuals, and sums to its mean."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from node.kernels.sparse_update_kernels import encode_update_fast, pack_update_fast, scatter_mean_fast, sparsify_fast
from protocol.weights import sparsify as reference
from protocol.weights.sparse_update import encode_update, pack_section
from protocol.weights.tensor_layout import TensorLayout
from tests.examples import examples

LAYOUT = TensorLayout.of({"matrix": (300, 61), "bias": (7,), "whole": (4096,), "one more": (4097,), "short": (200,)})
KINDS = ("normal", "ties", "zeros", "tiny", "growing", "one large")


def values(kind: str, size: int, seed: int) -> NDArray[np.float32]:
    random = np.random.default_rng(seed)
    normal = random.standard_normal(size, dtype=np.float32)
    match kind:
        case "ties":
            return random.integers(-3, 4, size).astype(np.float32)
        case "zeros":
            return np.zeros(size, np.float32)
        case "tiny":  # below the smallest normal float32
            return normal * np.float32(1e-41)
        case "growing":  # each chunk far above the one before it
            return normal * np.float32(2) ** (np.arange(size) // 300 % 12).astype(np.float32)
        case "one large":
            normal[size // 2] = 30_000
    return normal


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kept", [1, 64, 128, 4096])
def test_bytes_and_residuals_are_those_of_the_reference(kind: str, kept: int) -> None:
    residuals = [values(kind, size, size) for size in LAYOUT.sizes]
    deltas = [values(kind, size, size + 1) / np.float32(2) for size in LAYOUT.sizes]
    fast = [torch.from_numpy(residual.copy()) for residual in residuals]
    blob = encode_update_fast(LAYOUT, fast, [torch.from_numpy(d) for d in deltas], decay=0.95, kept=kept)
    expected = [
        reference.sparsify(residual, delta, decay=0.95, kept=kept)
        for residual, delta in zip(residuals, deltas, strict=True)
    ]
    assert blob == encode_update(LAYOUT, expected)
    for found, residual in zip(fast, residuals, strict=True):
        assert found.numpy().tobytes() == residual.tobytes()


@given(st.integers(1, 9000), st.integers(1, 4096), st.floats(0, 1), st.integers(0, 2**32))
@examples(60)
def test_any_size_and_any_number_kept(size: int, kept: int, decay: float, seed: int) -> None:
    residual, delta = values("normal", size, seed), values(KINDS[seed % len(KINDS)], size, seed + 1)
    fast = torch.from_numpy(residual.copy())
    found = sparsify_fast(fast, torch.from_numpy(delta), decay=decay, kept=kept)
    expected = reference.sparsify(residual, delta, decay=decay, kept=kept)
    assert pack_update_fast(found).content == pack_section(expected).content
    assert found.codebook.tobytes() == expected.codebook.tobytes()
    assert fast.numpy().tobytes() == residual.tobytes()


def test_threads_do_not_change_a_bit() -> None:
    layout = TensorLayout.of({"large": (600, 4096), "small": (100,)})
    deltas = [torch.from_numpy(values("normal", size, size)) for size in layout.sizes]
    threads, blobs = torch.get_num_threads(), []
    for number in (1, 4):
        torch.set_num_threads(number)
        residuals = [torch.zeros(size) for size in layout.sizes]
        blobs.append(encode_update_fast(layout, residuals, deltas, decay=0.9, kept=64))
    torch.set_num_threads(threads)
    assert blobs[0] == blobs[1]


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -70_000.0])
def test_values_that_cannot_be_sent_are_refused(bad: float) -> None:
    delta = torch.zeros(5000)
    delta[4500] = bad
    with pytest.raises(ValueError, match="an update holds"):
        sparsify_fast(torch.zeros(5000), delta, decay=0.95, kept=64)


@pytest.mark.parametrize("residual", [torch.zeros(5, dtype=torch.bfloat16), torch.zeros(10)[::2]])
def test_a_residual_that_cannot_be_changed_in_place_is_refused(residual: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="float32"):
        sparsify_fast(residual, torch.zeros(5), decay=0.95, kept=64)


@pytest.mark.parametrize("peers", [1, 2, 5])
def test_the_mean_of_peers_is_that_of_the_reference(peers: int) -> None:
    updates = []
    for peer in range(peers):
        delta = values("normal", 9000, peer) * np.float32(1 + peer**2)
        updates.append(reference.sparsify(np.zeros(9000, np.float32), delta, decay=1.0, kept=32 * (1 + peer)))
    found = scatter_mean_fast(updates)
    assert found.numpy().tobytes() == reference.scatter_mean(updates).tobytes()
