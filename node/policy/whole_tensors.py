"""Tensors that lie in parts on several devices, as one mapping: each is put together when it is asked for.

So a model that no single device could hold goes tensor by tensor into a checkpoint, to an engine or to peers.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TensorKind:
    """What is known of a tensor without having it."""

    shape: torch.Size
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


class WholeTensors(Mapping[str, Tensor]):
    """A read-only mapping. Each access gives a new tensor in main memory, which the caller may keep and change."""

    def __init__(self, kinds: Mapping[str, TensorKind], put_together: Callable[[str], Tensor]) -> None:
        self.kinds = dict(kinds)
        self._put_together = put_together

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.kinds:
            raise KeyError(name)
        return self._put_together(name)

    def __contains__(self, name: object) -> bool:
        return name in self.kinds

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each tensor; none is put together for it."""
    known: Mapping[str, TensorKind | Tensor] = tensors.kinds if isinstance(tensors, WholeTensors) else tensors
    return {name: tuple(each.shape) for name, each in known.items()}


def elements_of(tensors: Mapping[str, Tensor]) -> int:
    """Returns how many numbers they hold; none is put together for it."""
    return sum(torch.Size(shape).numel() for shape in shapes_of(tensors).values())


def bytes_of(tensors: Mapping[str, Tensor]) -> int:
    """Returns how many bytes they hold; none is put together for it."""
    if isinstance(tensors, ChainMap):
        return sum(bytes_of(each) for each in tensors.maps)
    known: Mapping[str, TensorKind | Tensor] = tensors.kinds if isinstance(tensors, WholeTensors) else tensors
    return sum(each.nbytes for each in known.values())


def joined(*parts: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Returns all of them as one mapping, in which the first of one name counts; none is put together for it."""
    return ChainMap(*parts)  # type: ignore[arg-type]  # nobody writes to it


def renamed(tensors: Mapping[str, Tensor], prefix: str) -> Mapping[str, Tensor]:
    """Returns the same tensors, live or put together later, under names that begin with ``prefix``."""
    if not isinstance(tensors, WholeTensors):
        return {prefix + name: tensor.detach() for name, tensor in tensors.items()}
    kinds = {prefix + name: kind for name, kind in tensors.kinds.items()}
    return WholeTensors(kinds, lambda name: tensors[name.removeprefix(prefix)])
