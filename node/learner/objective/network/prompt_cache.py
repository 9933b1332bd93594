"""The keys and values of a pass: those of each prompt are computed once, and its completions attend to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Cache

from node.kernels.training.row_lengths import RowLengths

KeysAndValues = tuple[Tensor, Tensor]  # (B, K, S, d) each


@dataclass(frozen=True, slots=True, eq=False)
class PromptRows:
    """Which prompt each of B completions follows."""

    prompt_of: Tensor  # (B,)
    columns: int  # the longest of these prompts; shorter ones are padded
    lengths: RowLengths | None = None  # where completions attend to prompts by lengths, not to copies

    def part(self, rows: slice) -> PromptRows:
        return PromptRows(self.prompt_of[rows], self.columns, None if self.lengths is None else self.lengths.part(rows))


@dataclass(frozen=True, slots=True, eq=False)
class Apart:
    """Keys, or values, of completions and of their prompts: in parts, one after the other, and not yet joined."""

    rows: PromptRows
    of_prompts: list[Tensor]  # (K, kv heads, columns, d) each
    own: list[Tensor]  # (B, kv heads, columns, d) each

    def joined(self) -> Tensor:
        """Returns (B, kv heads, columns, d): a copy of its prompt's for each row, then its own."""
        return torch.cat([_one(self.of_prompts)[self.rows.prompt_of, :, : self.rows.columns], *self.own], dim=2)

    def both(self) -> tuple[Tensor, Tensor]:
        return _one(self.of_prompts), _one(self.own)


def _one(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]


class PassCache(Cache):
    """What one call of a body takes as ``past_key_values``: it keeps those of prompts, or gives them to completions."""

    def __init__(self, prompts: PassCache | None = None, rows: PromptRows | None = None) -> None:
        """Without arguments: of prompts. With the cache of prompts: of completions, one row each."""
        super().__init__(layers=[])
        self._prompts, self.rows = prompts, rows
        self._kept: dict[int, list[KeysAndValues]] = {}  # layer → parts, in the order of the tokens

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self.rows is None else self.rows.columns

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def cut(self) -> tuple[list[Tensor], list[Tensor]]:
        """Cuts what the call for the prompts computed from its graph, for a backward pass in two parts. Returns these
        tensors, and those that completions see in their place, each of which collects the gradient of its counterpart.
        """
        computed, seen = list[Tensor](), list[Tensor]()
        for parts in self._kept.values():
            for index, pair in enumerate(parts):
                keys, values = (each.detach().requires_grad_() for each in pair)
                computed += pair
                seen += [keys, values]
                parts[index] = (keys, values)
        return computed, seen

    def of_prompts(self, layer: int) -> list[KeysAndValues]:
        """Returns the parts of one layer's keys and values of all prompts; empty in the call that computes them."""
        return [] if self._prompts is None else self._prompts._kept[layer]

    def keep(self, layer: int, own: list[KeysAndValues]) -> None:
        """Keeps what the call computed in one layer, if anything is to follow it."""
        if self.rows is None:
            self._kept[layer] = own

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Returns everything that one layer's queries may attend to, as ``LayerCache`` does."""
        view = LayerCache(self.rows, self.of_prompts(layer_idx))
        attended = view.update(key_states, value_states)
        self.keep(layer_idx, view.own)
        return attended


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Keys, or values, of prompts and completions one after the other, and which of them each token sees."""

    states: Tensor  # (1, kv heads, N, d)
    spans: NDArray[Any]  # (N, 3) as ``AttendPacked`` takes it


class PackedCache(Cache):
    """What the one call of a body takes whose tokens are packed: nothing is before them."""

    def __init__(self, spans: NDArray[Any]) -> None:
        super().__init__(layers=[])
        self._spans = spans

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        return Packed(key_states, self._spans), Packed(value_states, self._spans)


@dataclass(slots=True, eq=False)
class LayerCache:
    """The cache of one layer that runs on some of the tokens: what they see comes in, what they add comes out."""

    rows: PromptRows | None
    prompts: list[KeysAndValues]
    earlier: list[KeysAndValues] = field(default_factory=list)  # of the call's tokens before these
    own: list[KeysAndValues] = field(default_factory=list)

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Returns keys and values, each a tensor, or ``Apart`` for ``grouped_attention`` to choose."""
        self.own = [(key_states, value_states)]
        return self._attended(0), self._attended(1)

    def _attended(self, which: int) -> Tensor | Apart:
        own = [pair[which] for pair in (*self.earlier, *self.own)]
        if self.rows is None:
            return _one(own)
        apart = Apart(self.rows, [pair[which] for pair in self.prompts], own)
        return apart.joined() if self.rows.lengths is None else apart
