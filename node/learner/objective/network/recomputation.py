"""Layers that keep only their inputs, and compute themselves again, piece by piece, in the backward pass.

A layer runs on a piece of its input at a time: on some of the rows, and where one row is longer than a piece, on chunks
of the row from its first token to its last (StreamBP, arXiv 2506.03077). Causal attention lets a chunk see what came
before it and nothing after. Kept are what enters the layer, (B, T, D), and its keys and values. The backward pass goes
through layers and pieces in the opposite order, and holds one piece of one layer at a time.

    chunk c of layer l:   h_c, k_c, v_c = layer_l(h_c, keys and values of the prompt and of chunks before c)

The gradient of a layer's weights is added to their ``grad`` after each piece. autograd alone would hold a second whole
set of gradients until the end of the backward pass, since prompts and completions use the same weights. So only
``backward`` is of use: ``torch.autograd.grad`` does not see these weights.

Each layer's ``forward`` is replaced here while the body runs; the backward pass needs the original method alone.

Departure from StreamBP: keys and values are kept rather than computed again, since they are far smaller than the
hidden states in grouped-query attention.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from node.learner.objective.network.prompt_cache import KeysAndValues, LayerCache, PassCache, PromptRows
from protocol.errors import ConfigurationError

REMEDY: Final = "set learner.recompute = false, or choose another policy.model"
Run = Callable[..., tuple[Tensor, Tensor, Tensor]]  # hidden states, keys and values before → hidden, keys, values


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


@contextmanager
def recomputed_layers(layers: Sequence[torch.nn.Module], cache: PassCache, chunk_tokens: int | None) -> Iterator[None]:
    """Within the context ``layers`` compute as the module says, in calls that are given ``cache``.

    Guarantees that the modules are afterwards as before, also after an exception. With ``chunk_tokens`` at most so many
    tokens run at a time. Raises ``ConfigurationError``, at the call, for a layer which takes or returns something that
    this module does not know how to cut.
    """
    before = [(layer, vars(layer).get("forward")) for layer in layers]
    try:
        for index, layer in enumerate(layers):
            layer.forward = _RecomputedLayer(layer.forward, index, cache, chunk_tokens)
        yield
    finally:
        for layer, forward in before:
            if forward is None:
                vars(layer).pop("forward", None)
            else:
                layer.forward = forward


class _RecomputedLayer:
    """Takes the place of one layer's ``forward`` during one call of the body."""

    def __init__(self, forward: Callable[..., Any], index: int, cache: PassCache, chunk_tokens: int | None) -> None:
        self._forward, self._index, self._cache, self._chunk_tokens = forward, index, cache, chunk_tokens
        self._names = list(inspect.signature(forward).parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        arguments = dict(zip(self._names, args, strict=False)) | kwargs
        hidden: Tensor = arguments.pop(self._names[0])  # (B, T, D)
        cache_names = [name for name, value in arguments.items() if value is self._cache]
        if len(cache_names) != 1:
            raise ConfigurationError(f"a layer of this model does not take its cache as one argument: {REMEDY}")
        del arguments[cache_names[0]]

        def run_on(piece: Piece, rows: PromptRows | None, prompt_parts: int) -> Run:
            cut = cut_arguments(arguments, piece, *hidden.shape[:2])
            return _run_of(self._forward, cut, cache_names[0], rows, prompt_parts)

        height, length = piece_size(hidden.shape[0], hidden.shape[1], self._chunk_tokens)
        # One split has one backward; a slice for each piece would make as many gradients of the whole.
        results = [
            self._run_rows(part, number * height, length, run_on)
            for number, part in enumerate(torch.split(hidden, height))
        ]
        self._cache.keep(self._index, [_joined_rows(parts) for parts in zip(*(own for _, own in results), strict=True)])
        return torch.cat([output for output, _ in results]) if len(results) > 1 else results[0][0]

    def _run_rows(
        self, hidden: Tensor, top: int, length: int, run_on: Callable[[Piece, PromptRows | None, int], Run]
    ) -> tuple[Tensor, list[KeysAndValues]]:
        """Returns the layer's output (R, T, D) for R rows from ``top``, and keys and values in chunks of ``length``."""
        rows = slice(top, top + len(hidden))
        of_prompts = None if self._cache.rows is None else self._cache.rows.part(rows)
        prompts = self._cache.of_prompts(self._index)
        outputs, own = list[Tensor](), list[KeysAndValues]()
        left = 0
        for chunk in torch.split(hidden, length, dim=1):
            piece = Piece(rows, slice(left, left + chunk.shape[1]))
            flat = [tensor for pair in (*prompts, *own) for tensor in pair]
            output, keys, values = _recomputed(run_on(piece, of_prompts, len(prompts)), chunk, *flat)
            outputs.append(output)
            own.append((keys, values))
            left = piece.columns.stop
        return torch.cat(outputs, dim=1) if len(outputs) > 1 else outputs[0], own


def _joined_rows(parts: Sequence[KeysAndValues]) -> KeysAndValues:
    """Returns the keys and values of the same columns of all rows."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat([keys for keys, _ in parts]), torch.cat([values for _, values in parts])


def _run_of(
    forward: Callable[..., Any], arguments: dict[str, Any], cache_name: str, rows: PromptRows | None, prompt_parts: int
) -> Run:
    """Returns the function that is recomputed. Whatever may have a gradient is an argument of it.

    It must not hold the call's cache: that holds results of this function, and the cycle would never be freed.
    """

    def run(hidden: Tensor, *flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        view = LayerCache(rows, pairs[:prompt_parts], pairs[prompt_parts:])
        output = forward(hidden, **arguments, **{cache_name: view})
        if not isinstance(output, Tensor) or len(view.own) != 1:
            raise ConfigurationError(f"a layer of this model returns more than hidden states: {REMEDY}")
        keys, values = view.own[0]
        # A view would keep what it is a view of, such as queries, keys and values in one tensor.
        return output, keys.contiguous(), values.contiguous()

    return run


def _recomputed(run: Run, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns ``run(*inputs)``; for the backward pass autograd keeps only the inputs."""
    if not torch.is_grad_enabled():
        return run(*inputs)
    anchor = torch.empty(0, requires_grad=True)  # weights may need a gradient where no input does
    result: tuple[Tensor, Tensor, Tensor] = _Recomputed.apply(run, anchor, *inputs)  # type: ignore[no-untyped-call]
    return result


class _Recomputed(torch.autograd.Function):
    """Runs without a graph, and again with one in the backward pass, where weights get their gradients at once."""

    @staticmethod
    def forward(ctx: Any, run: Run, _: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.run = run
        ctx.save_for_backward(*inputs)
        return run(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        inputs = [t.detach().requires_grad_(need) for t, need in zip(ctx.saved_tensors, needed, strict=True)]
        with torch.enable_grad():
            outputs = ctx.run(*inputs)
        pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad and g is not None]
        if pairs:
            torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
        return None, None, *(each.grad for each in inputs)
