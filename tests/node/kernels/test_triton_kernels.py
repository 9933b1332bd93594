"""Triton's kernels, run by its interpreter behind the public functions, agree with the references to the bit.

That they compile for a GPU, and that nothing in them rounds otherwise there, is read off the code they compile to.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

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
ROOT = Path(__file__).resolve().parents[3]
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


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from node.kernels import triton_bits, triton_diff, triton_top_k

counts = "count:i32 kept:i32"
sent = "c0:fp32 c1:fp32 c2:fp32 c3:fp32"
for module, name, arguments, constants in [
    (triton_top_k, "_select", "residual:*fp32 delta:*fp32 indices:*i16 values:*fp32 largest:*i32 size:i32 kept:i32 "
     "decay:fp32", {"CHUNK": 4096}),
    (triton_top_k, "_quantise", "values:*fp32 codes:*u8 tallies:*i64 count:i32 factor:fp32 one:i32 two:i32 three:i32",
     {"BLOCK": 1024, "CODES": 4}),
    (triton_top_k, "_subtract", f"residual:*fp32 indices:*i16 values:*fp32 codes:*u8 {counts} {sent}",
     {"CHUNK": 4096, "BLOCK": 1024}),
    (triton_top_k, "_add", f"total:*fp32 contributors:*i16 indices:*i16 codes:*u8 {counts} {sent}",
     {"CHUNK": 4096, "BLOCK": 1024}),
    (triton_top_k, "_divide", f"total:*fp32 contributors:*i16 indices:*i16 {counts}", {"CHUNK": 4096, "BLOCK": 1024}),
    (triton_bits, "_pack", "values:*i32 out:*u8 count:i32 row_bytes:i32", {"A_BYTE": 8, "WIDTH": 1, "BLOCK": 256}),
    (triton_diff, "_compare", "base:*i16 target:*i16 mask:*u8 counts:*i64 size:i32", {"BLOCK": 4096}),
    (triton_diff, "_collect", "base:*i16 target:*i16 mask:*u8 starts:*i64 positions:*i64 zigzags:*i64",
     {"BLOCK": 4096}),
    (triton_diff, "_add_steps", "weights:*i16 positions:*i64 planes:*u8 count:i32 sign:i32", {"BLOCK": 1024}),
]:
    types = dict(argument.split(":") for argument in arguments.split()) | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=getattr(module, name), signature=types, constexprs=constants)
    options = {"enable_fp_fusion": False}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    ptx = compiled.asm["ptx"]
    assert compiled.asm["cubin"]
    assert "fma." not in ptx and ".ftz" not in ptx and ".approx" not in ptx and ".full" not in ptx, name
    assert ("div.rn.f32" in ptx) == (name == "_divide"), name
"""

LAUNCH = """
import functools

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from node.kernels.decoding.triton_attention import Rows, attend, rotate_and_keep
from node.kernels.decoding.triton_mlp import gated
from node.kernels.drawing.draw_keys import DrawKeys
from node.kernels.drawing.triton_draw import draw_on_device
from node.kernels.head.slopes import Slopes
from node.kernels.head.triton_blocks import fold, slope_of

class Hopper:
    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

launch = JITFunction.run
compiled = {}

def compile_as_launched(self, *arguments, grid, warmup, **options):
    kernel = launch(self, *arguments, grid=grid, warmup=True, **options)
    compiled.setdefault(self.fn.__name__, []).append(kernel.asm["ptx"])
    assert kernel.metadata.shared <= 48 * 1024, self.fn.__name__
    return kernel

driver.set_active(Hopper())
JITFunction.run = compile_as_launched
keys = DrawKeys(torch.tensor([5]), torch.arange(4), torch.zeros(4, dtype=torch.int64))
for vocabulary, temperature in [(1, 1.0), (151_936, 0.7), (151_936, 0)]:
    dtype = torch.float32 if vocabulary == 1 else torch.bfloat16
    draw_on_device(torch.zeros(4, vocabulary, dtype=dtype), temperature, keys)
running = torch.zeros(3, 64)
slopes = Slopes(running[0], running[1], torch.zeros(64, dtype=torch.int64), running[2], running[2])
for width, bias in [(8192, None), (1, torch.zeros(1, dtype=torch.bfloat16))]:
    fold(running[:, :4], torch.zeros(4, width), bias, 1.0)
    slope_of(torch.zeros(4, width), bias, 8192, 1.0, slopes.rows(slice(0, 4)))
half = functools.partial(torch.zeros, dtype=torch.bfloat16)
places = torch.zeros(4, dtype=torch.int32)
for queries, size, shared in [(7, 64, True), (4, 128, False)]:
    cache = [half(4, 2, 320, size)] * 4
    prompts = cache[2:] if shared else [None, None]
    rows = Rows(*cache[:2], places, places.long(), *prompts, places, places)
    heads = half(4, 2, queries + 2, size)
    rotate_and_keep(heads, None if shared else half(queries + 1, size), torch.zeros(64, size), 1e-6, rows)
    attend(heads, rows, 1 if shared else 1000)
gated(half(256, 896), half(896), half(4864, 896), half(4864, 896), 1e-6, "silu")
launches = {"_block_sums": 3, "_choose": 3, "_fold": 2, "_slope": 2}
launches |= {"_rotate_and_keep": 2, "_attend": 2, "_join": 1, "_gated": 1}
assert {name: len(each) for name, each in compiled.items()} == launches
for name in ("_fold", "_slope"):
    assert all("cvt.rn.bf16" in ptx and "cvt.rz" not in ptx for ptx in compiled[name]), name  # to the nearest
"""


@pytest.mark.processes
def test_kernels_compile_for_a_gpu_the_exact_ones_without_rounding_otherwise_and_others_as_they_are_launched(
    tmp_path: Path,
) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    subprocess.run([sys.executable, "-c", COMPILE + LAUNCH], env=environment, cwd=ROOT, check=True)
