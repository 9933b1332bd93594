"""Blobs that carry something for every tensor of a layout."""

from __future__ import annotations

import hashlib

import numpy as np

from protocol.weights.compressed_weights import encode_compressed
from protocol.weights.dense_weights import encode_dense
from protocol.weights.sparse_update import encode_update
from protocol.weights.sparsify import sparsify
from protocol.weights.tensor_layout import TensorLayout
from protocol.weights.weight_diff import Patterns, encode_diff, weights_hash
from protocol.weights.weight_slice import quantise_slice, slice_differences
from scripts.vectors.plain_values import Json, plain


def ramp(size: int, multiplier: int) -> list[float]:
    """Values without a random generator: entry i is ((i · multiplier) mod 2003 − 1001) / 1024, exact in float32."""
    return [((index * multiplier) % 2003 - 1001) / 1024 for index in range(size)]


UPDATE_SHAPES = {"bias": (5,), "embedding": (3, 1400), "scale": ()}


def sparse_updates() -> list[Json]:
    """Residual and change of every tensor, the codebooks, the blob, and the hash of what is left, tensors in order."""
    layout = TensorLayout.of(UPDATE_SHAPES)
    vectors = []
    for kept, decay in ((64, 0.95), (128, 1.0), (1, 0.5)):
        residuals = [np.array(ramp(size, 577), np.float32) for size in layout.sizes]
        tensors = [
            sparsify(residual, np.array(ramp(size, 1201), np.float32), decay=decay, kept=kept)
            for residual, size in zip(residuals, layout.sizes, strict=True)
        ]
        vectors.append(
            {
                "layout": plain(layout.tensors),
                "layout_digest": layout.digest.hex(),
                "residuals": "entry i is ((i * 577) mod 2003 - 1001) / 1024",
                "deltas": "entry i is ((i * 1201) mod 2003 - 1001) / 1024",
                "decay": decay,
                "kept": kept,
                "codebooks": [plain(tensor.codebook) for tensor in tensors],
                "residuals_left_sha256": hashlib.sha256(np.concatenate(residuals).astype("<f4").tobytes()).hexdigest(),
                "blob": encode_update(layout, tensors).hex(),
            }
        )
    return vectors


def compressed_weights() -> list[Json]:
    """Weights, steps, the slice's codes, the blob, and the differences that a near receiver reads, in order."""
    layout = TensorLayout.of(UPDATE_SHAPES)
    update = bytes.fromhex(sparse_updates()[0]["blob"])
    steps = np.array([0.25, 0.0625, 0.3], np.float32)
    vectors = []
    for stride, phase, bits in ((18, 5, 3), (1, 0, 1), (5000, 4999, 8)):
        weights = [np.array(ramp(size, 577), np.float32) for size in layout.sizes]
        own = [tensor + np.float32(0.01) for tensor in weights]
        part = quantise_slice(layout, weights, steps, stride=stride, phase=phase, bits=bits)
        differences = np.concatenate(slice_differences(layout, part, own))
        vectors.append(
            {
                "layout": plain(layout.tensors),
                "weights": "entry i is ((i * 577) mod 2003 - 1001) / 1024",
                "own": "the same plus 0.01, in float32",
                "stride": stride,
                "phase": phase,
                "bits": bits,
                "steps": plain(steps),
                "codes_sha256": hashlib.sha256(part.codes.tobytes()).hexdigest(),
                "differences_sha256": hashlib.sha256(differences.astype("<f4").tobytes()).hexdigest(),
                "blob": encode_compressed(layout, update, part).hex(),
            }
        )
    return vectors


def weight_diffs() -> list[Json]:
    """bf16 patterns of base and target, their hashes, and a blob that leads from one to the other."""
    layout = TensorLayout.of({"bias": (5,), "embedding": (3, 1400), "frozen": (2, 2), "new": (40,)})

    def patterns(multiplier: int) -> list[Patterns]:
        return [(np.arange(size) * multiplier % 65_521).astype(np.uint16) for size in layout.sizes]

    base = patterns(40_503)
    target = [tensor.copy() for tensor in base]
    target[0][[0, 4]] ^= 0x8000
    target[1][::101] += np.uint16(1)
    target[1][50::303] -= np.uint16(2)
    target[3] = patterns(30_011)[3]
    return [
        {
            "layout": plain(layout.tensors),
            "base": [tensor.astype("<u2").tobytes().hex() for tensor in base],
            "target": [tensor.astype("<u2").tobytes().hex() for tensor in target],
            "base_hash": weights_hash(layout, base).hex(),
            "target_hash": weights_hash(layout, target).hex(),
            "blob": encode_diff(layout, base, target).hex(),
        }
    ]


def dense_weights() -> list[Json]:
    """bf16 patterns of whole weights and their blob: both zeros, a subnormal and the largest values are among them."""
    layout = TensorLayout.of({"bias": (5,), "embedding": (3, 40), "scale": ()})
    tensors = [(np.arange(size) * 40_503 % 0x4780).astype(np.uint16) for size in layout.sizes]
    tensors[0][:] = (0x0000, 0x8000, 0x0001, 0x4780, 0xC780)
    return [
        {
            "layout": plain(layout.tensors),
            "tensors": [tensor.astype("<u2").tobytes().hex() for tensor in tensors],
            "blob": encode_dense(layout, tensors).hex(),
        }
    ]
