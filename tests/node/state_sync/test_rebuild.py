"""An anchor and diffs lead to exactly the announced weights, or to none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from node.kernels.weight_diff_kernels import encode_diff_fast, patterns_of, weights_hash_fast
from node.policy.weight_layout import layout_of
from node.state_sync.rebuild import BadBlobError, bf16_copy, copy_into, rebuild
from protocol.blob_id import blob_id
from protocol.errors import StorageError
from protocol.messages import StateAdvert, StateBlob
from protocol.weights.dense_weights import encode_dense
from protocol.weights.tensor_layout import TensorLayout
from swarm.api import Fetched

SHAPES = {"embedding": (40, 16), "bias": (16,), "scale": ()}


def policy(seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}


LAYOUT = layout_of(policy())


def versions(count: int, *, spoil: float | None = None) -> list[list[Tensor]]:
    """bf16 weights after each of so many steps; the last may have an invalid value."""
    trained = policy()
    found = [bf16_copy(LAYOUT, trained)]
    for step in range(1, count):
        trained["embedding"][step] += 0.25
        trained["bias"][step % 16] *= 1.5
        found.append(bf16_copy(LAYOUT, trained))
    if spoil is not None:
        found[-1][LAYOUT.names.index("bias")][3] = spoil
    return found


def fetched(paths: list[Path]) -> list[Fetched]:
    return [Fetched(bytes(32), str(path), None) for path in paths]


class Chain:
    """A publisher's blobs, as files."""

    def __init__(self, directory: Path, states: Sequence[list[Tensor]]) -> None:
        self.hashes = [weights_hash_fast(LAYOUT, state) for state in states]
        self.raw = [encode_dense(LAYOUT, patterns_of(states[0]))]
        for (base, target), (old, new) in zip(pairwise(states), pairwise(self.hashes), strict=True):
            self.raw.append(encode_diff_fast(LAYOUT, base, target, base_hash=old, target_hash=new))
        self.directory = directory

    def advert(self) -> StateAdvert:
        blobs = [StateBlob(blob_id(raw), len(raw), weights) for raw, weights in zip(self.raw, self.hashes, strict=True)]
        return StateAdvert(bytes(16), LAYOUT.digest, 1, 0, (), blobs[0], tuple(blobs[1:]))

    def paths(self) -> list[Path]:
        paths = []
        for number, raw in enumerate(self.raw):
            paths.append(self.directory / str(number))
            paths[-1].write_bytes(raw)
        return paths

    def rebuilt(self, layout: TensorLayout = LAYOUT) -> list[Tensor]:
        return rebuild(self.advert(), fetched(self.paths()), layout)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_anchor_and_three_diffs_lead_to_the_weights_that_were_announced(tmp_path: Path, dtype: torch.dtype) -> None:
    chain = Chain(tmp_path, versions(4))
    trained = policy(seed=9, dtype=dtype)
    copy_into(trained, LAYOUT, chain.rebuilt())
    assert weights_hash_fast(LAYOUT, bf16_copy(LAYOUT, trained)) == chain.hashes[-1] == chain.advert().target


def test_a_chain_with_a_missing_link_is_refused(tmp_path: Path) -> None:
    chain = Chain(tmp_path, versions(4))
    del chain.raw[2], chain.hashes[2]
    with pytest.raises(BadBlobError):
        chain.rebuilt()


def test_diffs_in_the_wrong_order_are_refused(tmp_path: Path) -> None:
    chain = Chain(tmp_path, versions(3))
    chain.raw[1:], chain.hashes[1:] = chain.raw[:0:-1], chain.hashes[:0:-1]
    with pytest.raises(BadBlobError):
        chain.rebuilt()


def test_an_anchor_of_other_weights_than_announced_is_refused(tmp_path: Path) -> None:
    chain = Chain(tmp_path, versions(2))
    chain.raw[0] = encode_dense(LAYOUT, patterns_of(bf16_copy(LAYOUT, policy(seed=5))))
    with pytest.raises(BadBlobError) as refusal:
        chain.rebuilt()
    assert refusal.value.blob == blob_id(chain.raw[0])


def test_a_diff_that_leads_elsewhere_than_announced_is_refused(tmp_path: Path) -> None:
    chain = Chain(tmp_path, versions(3))
    chain.hashes[2] = bytes(32)
    with pytest.raises(BadBlobError):
        chain.rebuilt()


def test_a_damaged_diff_is_refused_and_named(tmp_path: Path) -> None:
    chain = Chain(tmp_path, versions(3))
    chain.raw[2] = chain.raw[2][:-1] + bytes([chain.raw[2][-1] ^ 1])
    with pytest.raises(BadBlobError) as refusal:
        chain.rebuilt()
    assert refusal.value.blob == blob_id(chain.raw[2])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_weights_that_nobody_can_use_are_refused_even_if_every_hash_is_right(tmp_path: Path, value: float) -> None:
    chain = Chain(tmp_path, versions(3, spoil=value))
    with pytest.raises(BadBlobError, match="not finite"):
        chain.rebuilt()


def test_a_state_of_another_family_is_refused(tmp_path: Path) -> None:
    other = TensorLayout.of(SHAPES | {"bias": (17,)})
    with pytest.raises(BadBlobError):
        Chain(tmp_path, versions(1)).rebuilt(other)


def test_a_file_that_was_evicted_meanwhile_is_a_storage_error(tmp_path: Path) -> None:
    chain = Chain(tmp_path, versions(2))
    paths = chain.paths()
    paths[1].unlink()
    with pytest.raises(StorageError, match=r"swarm\.store_bytes"):
        rebuild(chain.advert(), fetched(paths), LAYOUT)
