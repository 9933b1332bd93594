"""What every kind of moments offers, and the moments of one parameter in a checkpoint, whichever kind wrote them.

A node whose plan changes (less memory than before) continues with the moments that it had, rounded to the new kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from node.learner.steps.adamw.block_codes import BlockCodes, blocks_of
from protocol.errors import StorageError

BETA1: Final = 0.9  # AdamW's constants, torch's defaults
BETA2: Final = 0.999
EPSILON: Final = 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class SavedMoments:
    step: int
    first: Tensor | BlockCodes
    second: Tensor | BlockCodes


class ParameterMoments(Protocol):
    """The moments of one parameter."""

    @property
    def steps(self) -> list[int]:
        """Of each slice."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Returns the moments as live tensors, by key."""
        ...

    def take(self, saved: SavedMoments) -> None:
        """Overwrites the moments by copies of saved ones, of whichever kind."""


P = TypeVar("P", bound=ParameterMoments)


class Moments(ABC, Generic[P]):
    """The moments of some float32 weights, by name."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = dict(weights)
        self._moments: dict[str, P] = {}

    def prepare(self) -> None:
        """Allocates all moments that are not there yet; they are 0."""
        self._moments |= {name: self._zeros(w) for name, w in self._weights.items() if name not in self._moments}

    @abstractmethod
    def step(self, name: str, index: int, part: slice, gradient: Tensor, rate: float, weight_decay: float) -> None:
        """Moves the ``index``-th slice of weights ``name``, flat ``part``, by its ``gradient`` (N,) in float32.

        ``prepare`` or ``restore`` was called before. Where it runs out of memory, nothing has changed.
        """

    def state(self, name: str) -> dict[str, Tensor]:
        """Returns "step" and the moments as live tensors, by key; nothing before the first ``prepare``."""
        if name not in self._moments:
            return {}
        moments = self._moments[name]
        step = float(moments.steps[0]) if moments.steps else 0.0  # a device may hold no row of a short tensor
        return {"step": torch.tensor(step), **moments.tensors()}

    def restore(self, name: str, saved: SavedMoments) -> None:
        """Replaces the moments by copies of saved ones for weights of the same shape, of whichever kind."""
        moments = self._moments[name] = self._moments.get(name) or self._zeros(self._weights[name])
        moments.steps[:] = [saved.step] * len(moments.steps)
        moments.take(saved)

    @abstractmethod
    def _zeros(self, weights: Tensor) -> P: ...


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
