"""A decoder for every causal model whose state is keys and values: transformers' own forward pass.

It differs from the lean decoder in being slower at small sizes, and in that each row holds its prompt (``KeyRows``).
Models that keep another kind of state (recurrent, convolutional) cannot be aligned on a shared timeline: refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from node.engines.decoder import Drafts, OneBatch, Parted, Prefilled, right_aligned
from node.engines.key_rows import KeyRows, Layers
from protocol.errors import ConfigurationError


class GenericDecoder(OneBatch):
    """``Decoder`` over ``model(...)``, for decoders whose layers keep keys and values (rows, kv heads, slots, size).

    It reads the live modules, so ``refresh`` does nothing. Rows hold their own prompts: ``free_prompts`` is None.
    Raises ``ConfigurationError``, when it is made, for a model with layers that keep another kind of state.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        kinds = {type(layer) for layer in DynamicCache(config=model.config).layers}
        if others := kinds - {DynamicLayer, DynamicSlidingWindowLayer}:
            names = ", ".join(sorted(kind.__name__ for kind in others))
            raise ConfigurationError(
                f"the model type {model.config.model_type} keeps a state that is not keys and values ({names}): the "
                "torch engine cannot batch it; choose a model with attention layers only"
            )
        self._model: Final = model
        accepted = inspect.signature(model.forward).parameters
        self._last_only: Final = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self._with_positions: Final = "position_ids" in accepted
        self._rows: Final = KeyRows(self._run, model.device)

    def refresh(self) -> None:
        return

    def begin(self, rows: int, completions: Sequence[int], longest_prompt: int, longest_completion: int) -> None:
        self.release()

    def release(self) -> None:
        self._rows.release()

    @property
    def cache_bytes(self) -> int:
        return self._rows.nbytes

    @property
    def free_prompts(self) -> None:
        return None

    def prefill(self, prompts: Sequence[Sequence[int]], completions: Sequence[int]) -> Prefilled[Layers]:
        logits, layers = self._rows.computed(*right_aligned(prompts, self._model.device))
        return Prefilled(logits, tuple(len(prompt) for prompt in prompts), layers)

    def join(self, prefilled: Prefilled[Layers], which: Sequence[int]) -> None:
        self._rows.join(prefilled.cache, prefilled.lengths, which)

    def leave(self, ended: Sequence[int], holes: Sequence[int], tails: Sequence[int], rows: int) -> None:
        self._rows.leave(holes, tails, rows)

    @property
    def verifies_drafts(self) -> bool:
        return False

    def take_back(self, counts: NDArray[np.int64]) -> None:
        raise AssertionError("it was given no drafts")

    def part(self, rows: Sequence[int]) -> list[Parted]:
        raise AssertionError("its rows do not part")

    def rejoin(self, parted: Sequence[Parted], tokens: Sequence[int]) -> None:
        raise AssertionError("its rows do not part")

    def drop(self, parted: Parted) -> None:
        raise AssertionError("its rows do not part")

    def step(self, tokens: Tensor, drafts: Drafts | None = None) -> Tensor:
        return self._rows.step(tokens[:, None])

    def _run(self, ids: Tensor, seen: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
        """Returns the logits after the last of ``ids``, (rows, V); ``seen`` covers the past and ``ids``."""
        more = self._last_only | ({"position_ids": positions} if self._with_positions else {})
        output = self._model(input_ids=ids, attention_mask=seen, past_key_values=cache, use_cache=True, **more)
        logits: Tensor = output.logits[:, -1]
        return logits
