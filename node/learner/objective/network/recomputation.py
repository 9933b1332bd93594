"""Layers that keep only their inputs, and compute themselves again, chunk by chunk, in the backward pass.

A layer runs on the tokens in chunks, from the first to the last (StreamBP, arXiv 2506.03077): causal attention lets a
chunk see what came before it and nothing after. Kept are what enters the layer, (B, T, D), and its keys and values. The
backward pass goes through layers and chunks in the opposite order, and holds one chunk of one layer at a time.

    chunk c of layer l:   h_c, k_c, v_c = layer_l(h_c, keys and values of the prompts and of chunks before c)

The values are the same as without chunks. transformers' own recomputation is of no use here: it removes the cache, and
with it the prompts, and asks for training mode. So each layer's ``forward`` is replaced while the body runs. The
backward pass needs the original method alone, so that nothing has to stay replaced for it.

Departure from StreamBP: keys and values are kept rather than computed again, since they are far smaller than the
hidden states in grouped-query attention. Gradients of the weights are summed over chunks in the weights' dtype.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from node.learner.objective.network.prompt_cache import KeysAndValues, LayerCache, PassCache, PromptRows
from protocol.errors import ConfigurationError

REMEDY: Final = "set learner.recompute = false, or choose another policy.model"


@contextmanager
def recomputed_layers(layers: Sequence[torch.nn.Module], cache: PassCache, chunk_tokens: int | None) -> Iterator[None]:
    """Within the context ``layers`` compute as the module says, in calls that are given ``cache``.

    Guarantees that the modules are afterwards as before, also after an exception. With ``chunk_tokens`` at most so many
    tokens of all rows together run at a time, at least one of each row. Raises ``ConfigurationError``, at the call, for
    a layer which takes or returns something that this module does not know how to cut.
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
        prompts = self._cache.of_prompts(self._index)
        outputs, own = list[Tensor](), list[KeysAndValues]()
        stop = 0
        for chunk in torch.split(hidden, self._columns(hidden), dim=1):
            start, stop = stop, stop + chunk.shape[1]
            cut = _cut(arguments, start, stop, hidden.shape[1])
            run = _run_of(self._forward, cut, cache_names[0], self._cache.rows, len(prompts))
            flat = [tensor for pair in (*prompts, *own) for tensor in pair]
            output, keys, values = checkpoint(run, chunk, *flat, use_reentrant=False, preserve_rng_state=False)
            outputs.append(output)
            own.append((keys, values))
        self._cache.keep(self._index, own)
        return torch.cat(outputs, dim=1) if len(outputs) > 1 else outputs[0]

    def _columns(self, hidden: Tensor) -> int:
        rows, width = hidden.shape[:2]
        return width if self._chunk_tokens is None else max(1, self._chunk_tokens // rows)


def _run_of(
    forward: Callable[..., Any], arguments: dict[str, Any], cache_name: str, rows: PromptRows | None, prompt_parts: int
) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Returns the function that is recomputed. Whatever may have a gradient is an argument of it.

    It must not hold the call's cache: that holds results of this function, and the cycle would never be freed.
    """

    def run(chunk: Tensor, *flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        view = LayerCache(rows, pairs[:prompt_parts], pairs[prompt_parts:])
        output = forward(chunk, **arguments, **{cache_name: view})
        if not isinstance(output, Tensor) or len(view.own) != 1:
            raise ConfigurationError(f"a layer of this model returns more than hidden states: {REMEDY}")
        keys, values = view.own[0]
        # A view would keep what it is a view of, such as queries, keys and values in one tensor.
        return output, keys.contiguous(), values.contiguous()

    return run


def _cut(arguments: dict[str, Any], start: int, stop: int, width: int) -> dict[str, Any]:
    """Returns a layer's arguments, but for hidden states and cache, for tokens ``start`` to ``stop`` of ``width``."""
    cut = {name: value for name, value in arguments.items() if not isinstance(value, PassCache)}
    if (start, stop) == (0, width):
        return cut
    for name, value in cut.items():
        if name == "attention_mask" and isinstance(value, Tensor) and value.ndim == 4:
            cut[name] = value[:, :, start:stop, : value.shape[3] - width + stop]
        elif name in ("position_ids", "cache_position") and isinstance(value, Tensor):
            cut[name] = value[..., start:stop]
        elif name == "position_embeddings" and isinstance(value, Tensor):
            cut[name] = value[..., start:stop, :]
        elif name == "position_embeddings" and isinstance(value, tuple):
            cut[name] = tuple(each[..., start:stop, :] for each in value)
        elif isinstance(value, Tensor | tuple | list | dict):
            raise ConfigurationError(f"a layer of this model takes {name}, which cannot be cut in chunks: {REMEDY}")
    return cut
