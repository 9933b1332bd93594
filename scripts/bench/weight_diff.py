"""Lossless bf16 weight diffs: bytes and time, against XOR with zstd level 1, in the same run and in one thread.

    python -m scripts.bench.weight_diff [--weights 100000000] [--json]

The base is 100 M normally distributed weights of standard deviation 0.02. "synthetic": 1 % of them one step up or down.
"lr 1e-6": the bf16 rounding of float32 master weights before and after one AdamW step of that rate with gradients and
moments as they are after many steps (update lr · g / √v, g / √v normally distributed with deviation 0.2). Speeds are
bytes of the dense vector a second, without the hashes of base and target, which the contender does not compute either;
a separate figure gives their speed.
"""

from __future__ import annotations

import numpy as np
import torch
import zstandard

from node.kernels.weight_diff_kernels import (
    encode_diff_fast,
    pack_diff_fast,
    patterns_of,
    unpack_diff_fast,
    weights_hash_fast,
)
from protocol.weights.tensor_layout import TensorLayout
from protocol.weights.weight_diff import Patterns
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.common.timing import best_seconds

TENSORS = 16
DEVIATION = 0.02
RELATIVE_UPDATE = 0.2


def stepped(base: list[Patterns], random: np.random.Generator) -> list[Patterns]:
    target = [tensor.copy() for tensor in base]
    for tensor in target:
        changed = random.choice(len(tensor), len(tensor) // 100, replace=False)
        tensor[changed] += random.choice(np.array([1, 65535], np.uint16), len(changed))
    return target


def tensors_of(arrays: list[Patterns]) -> list[torch.Tensor]:
    return [torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) for array in arrays]


def blob_bytes(layout: TensorLayout, base: list[torch.Tensor], target: list[torch.Tensor]) -> int:
    return len(encode_diff_fast(layout, base, target, base_hash=weights_hash_fast(layout, base), target_hash=bytes(32)))


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--weights", type=int, default=100_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    each = options.weights // TENSORS
    dense_bytes = 2 * each * TENSORS
    layout = TensorLayout.of({f"{index:02}": (each,) for index in range(TENSORS)})
    masters = [torch.randn(each) * DEVIATION for _ in range(TENSORS)]
    base_tensors = [master.to(torch.bfloat16) for master in masters]
    updated = [(m + 1e-6 * RELATIVE_UPDATE * torch.randn(each)).to(torch.bfloat16) for m in masters]
    del masters
    real_changed = sum(int((a != b).sum()) for a, b in zip(base_tensors, updated, strict=True))
    real_bytes = blob_bytes(layout, base_tensors, updated)
    del updated

    base = patterns_of(base_tensors)
    target = stepped(base, random)
    changed = TENSORS * (each // 100)
    diff_bytes = blob_bytes(layout, base_tensors, tensors_of(target))
    sections = [pack_diff_fast(old, new) for old, new in zip(base, target, strict=True)]
    compressor, decompressor = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    frames = [compressor.compress((old ^ new).data) for old, new in zip(base, target, strict=True)]
    room, weights = np.empty(each, np.uint16), [tensor.copy() for tensor in base]

    def xor_diff() -> None:
        for old, new in zip(base, target, strict=True):
            compressor.compress(np.bitwise_xor(old, new, out=room).data)

    def xor_patch() -> None:  # the second call undoes the first with the same work
        for tensor, frame in zip(weights, frames, strict=True):
            np.bitwise_xor(tensor, np.frombuffer(decompressor.decompress(frame), np.uint16), out=tensor)

    def patch() -> None:
        for tensor, section in zip(weights, sections, strict=True):
            unpack_diff_fast(section, each).move(tensor, 1)

    def copy_all() -> None:
        for tensor, old in zip(weights, base, strict=True):
            np.copyto(tensor, old)

    seconds = best_seconds(
        options.repeats,
        lambda: [pack_diff_fast(old, new) for old, new in zip(base, target, strict=True)],
        patch,
        xor_diff,
        xor_patch,
        lambda: [np.array_equal(old, new) for old, new in zip(base, target, strict=True)],
        copy_all,
        lambda: weights_hash_fast(layout, base_tensors),
    )
    pack, unpack, xor, unxor, compare, copy, hashing = (dense_bytes / second / 1e9 for second in seconds)
    figures = [
        Figure("1 % changed: bytes a changed weight", diff_bytes / changed, "bytes", "lower", "≤ 1.4"),
        Figure("the same, XOR with zstd-1", sum(map(len, frames)) / changed, "bytes", "lower"),
        Figure("lr 1e-6: share changed", 100 * real_changed / (each * TENSORS), "%", "lower"),
        Figure("lr 1e-6: smaller than dense", dense_bytes / real_bytes, "×", "higher", "≥ 100"),
        Figure("diff", pack, "GB/s", "higher"),
        Figure("diff against XOR with zstd-1", pack / xor, "×", "higher", "≥ 1.5"),
        Figure("diff against comparing alone", pack / compare, "of it", "higher", "aim 1"),
        Figure("patch", unpack, "GB/s", "higher"),
        Figure("patch against XOR with zstd-1", unpack / unxor, "×", "higher", "≥ 3"),
        Figure("patch against copying", unpack / copy, "of it", "higher", "aim 1"),
        Figure("hash of all weights", hashing, "GB/s", "higher"),
    ]
    report("weight_diff", figures, as_json=options.json)


if __name__ == "__main__":
    main()
