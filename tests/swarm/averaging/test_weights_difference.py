"""The difference of two blobs on disk; weights that must not be used are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocol.errors import IntegrityError, MalformedError, StorageError
from protocol.weights import compressed_weights
from protocol.weights.compressed_weights import encode_compressed
from protocol.weights.dense_weights import ENCODING, Patterns, dense_bytes, encode_dense, widened
from protocol.weights.sparse_update import encode_update
from protocol.weights.sparsify import SparseTensor, sparsify
from protocol.weights.tensor_layout import TensorLayout
from protocol.weights.weight_slice import quantise_slice
from swarm.averaging.weights_difference import ENCODINGS, measure_difference

LAYOUT = TensorLayout.of({"a": ((1 << 20) + 5,), "b": (3, 4)})  # one is larger than a piece


def patterns(seed: int, scale: float = 1.0) -> list[Patterns]:
    random = np.random.default_rng(seed)
    drawn = [scale * random.standard_normal(size, np.float32) for size in LAYOUT.sizes]
    return [(values.view(np.uint32) >> 16).astype(np.uint16) for values in drawn]


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e4])
def test_both_norms_are_those_of_the_values(tmp_path: Path, scale: float) -> None:
    theirs, ours = patterns(1, scale), patterns(2, scale)
    files = written(tmp_path / "t", encode_dense(LAYOUT, theirs)), written(tmp_path / "o", encode_dense(LAYOUT, ours))
    found = measure_difference(ENCODING, *files, LAYOUT)
    its, own = (np.concatenate([widened(t) for t in tensors]).astype(np.float64) for tensors in (theirs, ours))
    assert found.norm == pytest.approx(float(np.linalg.norm(its - own)), rel=1e-6)
    assert found.own_norm == pytest.approx(float(np.linalg.norm(own)), rel=1e-6)
    assert measure_difference(ENCODING, files[1], files[1], LAYOUT).norm == 0.0


def test_a_file_that_is_not_there_or_empty_is_the_disks_fault_and_one_that_does_not_decode_the_senders(
    tmp_path: Path,
) -> None:
    good = written(tmp_path / "good", encode_dense(LAYOUT, patterns(1)))
    other = TensorLayout.of({"a": (4,)})
    foreign = written(tmp_path / "foreign", encode_dense(other, [np.zeros(4, np.uint16)]))
    for file, error in (
        (tmp_path / "gone", StorageError),
        (written(tmp_path / "empty", b""), StorageError),
        (written(tmp_path / "short", good.read_bytes()[:-1]), MalformedError),
        (foreign, IntegrityError),
    ):
        with pytest.raises(error):
            measure_difference(ENCODING, file, good, LAYOUT)


def test_every_encoding_says_how_long_a_blob_may_be() -> None:
    assert {name: encoding.max_bytes(LAYOUT, 700) for name, encoding in ENCODINGS.items()} == {
        ENCODING: dense_bytes(LAYOUT),
        compressed_weights.ENCODING: 1400,
    }


def compressed(update: list[SparseTensor]) -> bytes:
    zeros, steps = [np.zeros(size, np.float32) for size in LAYOUT.sizes], np.full(2, 0.1, np.float32)
    part = quantise_slice(LAYOUT, zeros, steps, stride=1000, phase=3, bits=3)
    return encode_compressed(LAYOUT, encode_update(LAYOUT, update), part)


def update_of(seed: int, scale: float = 1.0) -> list[SparseTensor]:
    random = np.random.default_rng(seed)
    drawn = [np.float32(scale) * random.standard_normal(size, np.float32) for size in LAYOUT.sizes]
    return [sparsify(np.zeros_like(values), values, decay=1.0, kept=64) for values in drawn]


def whole(update: list[SparseTensor]) -> np.ndarray:
    values = [np.zeros(tensor.size) for tensor in update]
    for tensor, sent in zip(values, update, strict=True):
        tensor[sent.positions] = sent.values
    return np.concatenate(values)


@pytest.mark.parametrize(("seeds", "scale"), [((1, 2), 1.0), ((1, 1), 1.5), ((1, 1), 1.0), ((3, 4), 1e-12)])
def test_both_norms_of_compressed_weights_are_those_of_the_updates(
    tmp_path: Path, seeds: tuple[int, int], scale: float
) -> None:
    theirs, ours = update_of(seeds[0], scale), update_of(seeds[1])
    files = written(tmp_path / "t", compressed(theirs)), written(tmp_path / "o", compressed(ours))
    found = measure_difference(compressed_weights.ENCODING, *files, LAYOUT)
    apart = float(np.linalg.norm(whole(theirs) - whole(ours)))
    assert found.norm == pytest.approx(apart, rel=1e-6, abs=1e-6 * found.own_norm)
    assert found.own_norm == pytest.approx(float(np.linalg.norm(whole(ours))), rel=1e-6)


def test_a_compressed_blob_that_does_not_decode_is_refused_beside_ours_and_as_ours(tmp_path: Path) -> None:
    good = written(tmp_path / "good", compressed(update_of(1)))
    short = written(tmp_path / "short", good.read_bytes()[:-1])
    for ours in (good, short):
        with pytest.raises(MalformedError):
            measure_difference(compressed_weights.ENCODING, short, ours, LAYOUT)
    assert measure_difference(compressed_weights.ENCODING, good, good, LAYOUT).norm == 0.0
