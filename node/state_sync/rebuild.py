"""Rebuilds weights from an anchor and a chain of diffs, and checks every step.

    hash of the anchor = advertised;  base of diff i = target of diff i − 1;  target of diff i = advertised

Guarantees: the returned weights have the announced hash, hold only finite values within ``limits.UPDATE_MAGNITUDE``,
and share no memory with weights in use. ``copy_into`` then puts them in place as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from node.kernels.weight_diff_kernels import apply_diff_fast, patterns_of, weights_hash_fast
from protocol.errors import IntegrityError, ProtocolError, StorageError
from protocol.messages import StateAdvert, StateBlob
from protocol.weights.dense_weights import check_values, open_dense
from protocol.weights.tensor_layout import TensorLayout
from protocol.weights.weight_diff import open_diff
from swarm.api import Fetched


def bf16_copy(layout: TensorLayout, trained: Mapping[str, Tensor]) -> list[Tensor]:
    """Returns the values rounded to bf16, in host memory and in the layout's order; shares no memory."""
    return [
        trained[name].detach().to("cpu", torch.bfloat16, copy=True, memory_format=torch.contiguous_format)
        for name in layout.names
    ]


class BadBlobError(ProtocolError):
    """One blob of a state is not what was announced."""

    reason = "bad_state"

    def __init__(self, blob: bytes, error: ProtocolError) -> None:
        super().__init__(f"blob {blob.hex()[:16]}: {error}")
        self.blob = blob


def rebuild(advert: StateAdvert, fetched: Sequence[Fetched], layout: TensorLayout) -> list[Tensor]:
    """Returns bf16 tensors in the layout's order. ``fetched`` are ``advert.blobs``, all of them here.

    Raises ``BadBlobError``, and ``StorageError`` for a file that does not exist any more.
    """
    weights: list[Tensor] = []
    at = bytes(32)
    for each, here in zip(advert.blobs, fetched, strict=True):
        try:
            raw = here.read()
        except OSError as error:
            raise StorageError(f"{here.path} is gone ({error.strerror}): raise swarm.store_bytes") from error
        try:
            if not weights:
                weights, at = _anchor(each, raw, layout)
            else:
                at = _diff(each, raw, layout, weights, at)
        except ProtocolError as error:
            raise BadBlobError(each.blob, error) from error
    try:
        check_values(layout, patterns_of(weights))
    except ProtocolError as error:
        raise BadBlobError(advert.blobs[-1].blob, error) from error
    return weights


@torch.no_grad()
def copy_into(trained: Mapping[str, Tensor], layout: TensorLayout, weights: Sequence[Tensor]) -> None:
    """Sets parameters to values in the layout's order; those of float32 then hold exactly the bf16 values."""
    for name, tensor in zip(layout.names, weights, strict=True):
        trained[name].copy_(tensor)


def _anchor(each: StateBlob, raw: bytes, layout: TensorLayout) -> tuple[list[Tensor], bytes]:
    tensors = [torch.from_numpy(patterns.astype(np.uint16)) for patterns in open_dense(raw, layout)]
    weights = [
        tensor.view(torch.bfloat16).reshape(shape) for tensor, (_, shape) in zip(tensors, layout.tensors, strict=True)
    ]
    found = weights_hash_fast(layout, weights)
    if found != each.weights:
        raise IntegrityError(f"an anchor of weights {found.hex()[:16]}; announced were {each.weights.hex()[:16]}")
    return weights, found


def _diff(each: StateBlob, raw: bytes, layout: TensorLayout, weights: Sequence[Tensor], at: bytes) -> bytes:
    target = open_diff(raw, layout).target
    if target != each.weights:
        raise IntegrityError(f"a diff to weights {target.hex()[:16]}; announced were {each.weights.hex()[:16]}")
    apply_diff_fast(raw, layout, weights, current=at)
    return target
