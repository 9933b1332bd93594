"""Weights as bytes, for an engine that cannot be given tensors: all of them or a difference, with the result's hash.

    diff     ``protocol.weights.weight_diff``: bf16 patterns that differ from those the engine holds
    dense    ``protocol.weights.dense_weights``: all of them

Guarantee: after loading, the weights have exactly the patterns whose hash the sender named; otherwise the call raises
and no weight has changed. A policy in another dtype than bf16 then holds exactly the bf16 values: the engine samples
from the rounded policy, and its log-probabilities are those of the rounded policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from node.kernels.dispatch import is_for_triton
from node.kernels.weight_diff_kernels import apply_diff_fast, weights_hash_fast
from node.policy.weight_layout import layout_of
from protocol.errors import IntegrityError
from protocol.messages import Hash32
from protocol.weights.dense_weights import open_dense
from protocol.weights.tensor_layout import TensorLayout
from protocol.weights.weight_diff import DIFF_MAGIC, Patterns, hash_of_digests, open_diff, tensor_digest


class EncodedWeights(Struct, frozen=True, array_like=True):
    """The trained weights of one version, as ``docs/engines.md`` sends them."""

    target: Hash32  # ``weights_hash`` of the weights that the engine must hold afterwards
    blob: bytes  # diff or dense: its first four bytes say which

    @property
    def is_diff(self) -> bool:
        return self.blob[:4] == DIFF_MAGIC


@torch.no_grad()
def load_encoded(encoded: EncodedWeights, trained: Mapping[str, Tensor], current: bytes | None) -> None:
    """Sets ``trained``, parameters by name, to the encoded weights. ``current`` is their present hash, if known.

    Raises ``StaleBaseError`` for a diff from other weights than these, ``IntegrityError`` for damage or for a result
    that is not the target, ``MalformedError`` or ``OversizedError`` for a blob of neither form.
    """
    layout = layout_of(trained)
    live = [trained[name].detach() for name in layout.names]
    if encoded.is_diff:
        _load_diff(encoded, layout, live, current)
    else:
        _load_dense(encoded, layout, live)


@torch.no_grad()
def rounded(layout: TensorLayout, weights: Mapping[str, Tensor], room: list[Tensor] | None) -> list[Tensor]:
    """Returns copies of ``weights`` in bf16 in host memory, in the layout's order, written over ``room`` if there is
    any."""
    if room is None:
        room = [torch.empty(shape, dtype=torch.bfloat16) for _, shape in layout.tensors]
    for name, copied in zip(layout.names, room, strict=True):
        copied.copy_(weights[name])
    return room


def _load_diff(encoded: EncodedWeights, layout: TensorLayout, live: Sequence[Tensor], current: bytes | None) -> None:
    leads_to = open_diff(encoded.blob, layout).target
    if leads_to != encoded.target:
        raise IntegrityError(f"a diff to weights {leads_to.hex()[:16]}; {encoded.target.hex()[:16]} were announced")
    in_place = all(_can_be_patched(tensor) for tensor in live)
    held = live if in_place else [tensor.to("cpu", torch.bfloat16).contiguous() for tensor in live]
    at = weights_hash_fast(layout, held) if current is None else current
    apply_diff_fast(encoded.blob, layout, held, current=at)
    if not in_place:
        for tensor, patched in zip(live, held, strict=True):
            tensor.copy_(patched)


def _load_dense(encoded: EncodedWeights, layout: TensorLayout, live: Sequence[Tensor]) -> None:
    patterns = open_dense(encoded.blob, layout)
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        found = hash_of_digests(layout, list(pool.map(tensor_digest, patterns)))
    if found != encoded.target:
        raise IntegrityError(f"weights {found.hex()[:16]}; {encoded.target.hex()[:16]} were announced")
    for tensor, pattern in zip(live, patterns, strict=True):
        tensor.copy_(_bf16(pattern).reshape(tensor.shape))


def _can_be_patched(tensor: Tensor) -> bool:
    on_device = tensor.device.type == "cpu" or is_for_triton(tensor.device)
    return on_device and tensor.dtype == torch.bfloat16 and tensor.is_contiguous()


def _bf16(patterns: Patterns) -> Tensor:
    """Returns the values as a tensor (n,) with memory of its own: the blob's must not be written to."""
    return torch.from_numpy(patterns.astype(np.uint16).view(np.int16)).view(torch.bfloat16)
