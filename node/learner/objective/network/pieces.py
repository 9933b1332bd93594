"""How the input of a layer, (B, T, D), and what it takes beside it are cut into pieces of few tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from torch import Tensor

from protocol.errors import ConfigurationError

REMEDY: Final = "set learner.recompute = false, or choose another policy.model"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some columns of some rows."""

    rows: slice
    columns: slice


def piece_size(rows: int, width: int, tokens: int | None) -> tuple[int, int]:
    """Returns how many rows and columns a piece of at most ``tokens`` tokens has. None: all of them.

    Whole rows where one fits, since chunks of a row cost more; otherwise a chunk of one row.
    """
    if tokens is None or rows * width <= tokens:
        return rows, width
    return max(1, tokens // width), min(width, tokens)


def cut_arguments(arguments: Mapping[str, Any], piece: Piece, rows: int, width: int) -> dict[str, Any]:
    """Returns a layer's arguments beside hidden states and cache for one piece of ``rows`` rows of ``width`` tokens.

    Raises ``ConfigurationError`` for an argument that this module does not know how to cut.
    """
    if piece == Piece(slice(0, rows), slice(0, width)):
        return dict(arguments)
    return {name: _cut(name, value, piece, width) for name, value in arguments.items()}


def _cut(name: str, value: Any, piece: Piece, width: int) -> Any:
    if isinstance(value, tuple) and name in _CUTS:
        return tuple(_cut(name, each, piece, width) for each in value)
    if isinstance(value, Tensor) and name in _CUTS:
        cut = _CUTS[name](value, piece, width)
        if cut is not None:
            return cut
    if isinstance(value, Tensor | tuple | list | dict):
        raise ConfigurationError(f"a layer of this model takes {name}, which cannot be cut in pieces: {REMEDY}")
    return value


def _cut_mask(mask: Tensor, piece: Piece, width: int) -> Tensor | None:
    if mask.ndim != 4:
        return None
    seen = mask.shape[3] - width + piece.columns.stop  # what comes before the call, and the call's tokens so far
    return _of_rows(mask, piece)[:, :, piece.columns, :seen]  # (B, H, T, S)


def _cut_columns(dimensions: int, tensor: Tensor, piece: Piece, width: int) -> Tensor | None:
    return _of_rows(tensor, piece)[:, piece.columns] if tensor.ndim == dimensions else None


def _of_rows(tensor: Tensor, piece: Piece) -> Tensor:
    return tensor if tensor.shape[0] == 1 else tensor[piece.rows]  # one row stands for all


_CUTS: Final[Mapping[str, Callable[[Tensor, Piece, int], Tensor | None]]] = MappingProxyType(
    {
        "attention_mask": _cut_mask,
        "position_ids": partial(_cut_columns, 2),  # (B, T)
        "position_embeddings": partial(_cut_columns, 3),  # (B, T, d)
    }
)
