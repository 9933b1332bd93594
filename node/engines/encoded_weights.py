"""Weights as an engine takes them that cannot be handed tensors: whole, or as what changed, the result's hash beside.

    diff     ``protocol.weights.weight_diff``: bf16 patterns that differ from those the engine holds
    dense    ``protocol.weights.dense_weights``: all of them

Guarantee: the weights end with exactly the patterns whose hash the sender named, or the call raises and every one of
them is what it was. A policy in another dtype than bf16 then holds exactly the bf16 values: the engine samples from the
rounded policy, and its log-probabilities are that one's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from node.kernels import weight_diff_kernels as weight_diff
from node.kernels.dispatch import is_for_triton
from protocol.errors import IntegrityError
from protocol.messages import Hash32
from protocol.weights.dense_weights import open_dense
from protocol.weights.tensor_layout import TensorLayout
from protocol.weights.weight_diff import DIFF_MAGIC, Patterns, hash_of_digests, open_diff, tensor_digest


class EncodedWeights(Struct, frozen=True, array_like=True):
    """One version's trained weights. Its MessagePack form is what crosses a pipe or a network."""

    target: Hash32  # ``weights_hash`` of what the engine must hold then
    blob: bytes  # a diff or a dense one, as its first four bytes say

    @property
    def is_diff(self) -> bool:
        return self.blob[:4] == DIFF_MAGIC


@torch.no_grad()
def take_over(encoded: EncodedWeights, trained: Mapping[str, Tensor], current: bytes | None) -> None:
    """Brings ``trained``, parameters by name, to the encoded weights. ``current`` is their hash, where it is known.

    Raises ``StaleBaseError`` for a diff from other weights than these, ``IntegrityError`` for damage or if what comes
    out is not the target, ``MalformedError`` or ``OversizedError`` for what is neither of the two forms.
    """
    layout = TensorLayout.of({name: tuple(tensor.shape) for name, tensor in trained.items()})
    live = [trained[name].detach() for name in layout.names]
    if encoded.is_diff:
        _take_diff(encoded, layout, live, current)
    else:
        _take_dense(encoded, layout, live)


def _take_diff(encoded: EncodedWeights, layout: TensorLayout, live: Sequence[Tensor], current: bytes | None) -> None:
    leads_to = open_diff(encoded.blob, layout).target
    if leads_to != encoded.target:
        raise IntegrityError(f"a diff to weights {leads_to.hex()[:16]}; {encoded.target.hex()[:16]} were announced")
    in_place = all(_can_be_patched(tensor) for tensor in live)
    held = live if in_place else [tensor.to("cpu", torch.bfloat16).contiguous() for tensor in live]
    at = weight_diff.weights_hash(layout, held) if current is None else current
    weight_diff.apply(encoded.blob, layout, held, current=at)
    if not in_place:
        for tensor, patched in zip(live, held, strict=True):
            tensor.copy_(patched)


def _take_dense(encoded: EncodedWeights, layout: TensorLayout, live: Sequence[Tensor]) -> None:
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
    """A tensor (n,) of the values, over memory of its own: the blob's must not be written to."""
    return torch.from_numpy(patterns.astype(np.uint16).view(np.int16)).view(torch.bfloat16)
