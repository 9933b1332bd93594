"""The moments of one parameter in a checkpoint, in float32 or in 8 bits, whichever kind wrote them.

A node whose plan changes (less memory than before) continues with the moments that it had, rounded to the new kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from node.learner.steps.adamw.block_codes import BlockCodes, blocks_of
from protocol.errors import StorageError


@dataclass(frozen=True, slots=True, eq=False)
class SavedMoments:
    step: int
    first: Tensor | BlockCodes
    second: Tensor | BlockCodes


def saved_moments(tensors: Mapping[str, Tensor], name: str, shape: torch.Size) -> SavedMoments | None:
    """Returns the moments of parameter ``name``, None if it had no step before.

    Raises ``StorageError`` where a tensor is missing or of another shape.
    """
    if f"step.{name}" not in tensors:
        return None
    return SavedMoments(
        int(of_shape(tensors, f"step.{name}", torch.Size([]))),
        _moment(tensors, "exp_avg", name, shape, signed=True),
        _moment(tensors, "exp_avg_sq", name, shape, signed=False),
    )


def _moment(
    tensors: Mapping[str, Tensor], key: str, name: str, shape: torch.Size, *, signed: bool
) -> Tensor | BlockCodes:
    moment = of_shape(tensors, f"{key}.{name}", shape)
    if moment.dtype != torch.uint8:
        return moment
    scales = of_shape(tensors, f"{key}_scales.{name}", torch.Size([blocks_of(shape.numel())]))
    return BlockCodes(moment, scales, signed)


def of_shape(tensors: Mapping[str, Tensor], name: str, shape: torch.Size) -> Tensor:
    """Returns tensor ``name``. Raises ``StorageError`` if it is missing or of another shape."""
    tensor = tensors.get(name)
    if tensor is None or tensor.shape != shape:
        found = "missing" if tensor is None else f"of shape {tuple(tensor.shape)}"
        raise StorageError(f"the optimizer's {name} is {found}, expected shape {tuple(shape)}")
    return tensor
