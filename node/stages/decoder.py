"""A decoder over the owner's layers and those of other machines, which keep the keys and values of theirs.

Several batches grow side by side, each on a thread of its own: while the rows of one are on other machines, the owner
computes those of another, in rotation (``Turns``). So what each samples, and when the engine sees it, does not depend
on which machine was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import cycle

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from node.engines.decoder import Drafts, Prefilled, Result, right_aligned
from node.engines.generic import GenericDecoder
from node.engines.key_rows import Layers
from node.stages.cut import last_norm_name, part_of
from node.stages.stages import Stages
from node.stages.turns import Turns


class StagedDecoder(GenericDecoder):
    """As ``GenericDecoder``; raises ``StageLostError`` where a machine is lost, and then needs ``begin``."""

    def __init__(
        self, model: PreTrainedModel, own_layers: int, stages: Stages, batches: int = 1, *, number: int = 0
    ) -> None:
        """``number`` is that of its own batch; it makes the decoders of the other ``batches``."""
        super().__init__(model)
        body = model.base_model
        assert body is not None
        self._part = part_of(body, range(own_layers))
        self._last_norm: torch.nn.Module = getattr(body, last_norm_name(body))
        self._head: torch.nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        self._stages = stages
        self._number = number
        self._others = [StagedDecoder(model, own_layers, stages, number=each) for each in range(1, batches)]
        self._waiting: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def batches(self) -> int:
        return 1 + len(self._others)

    def side_by_side(self, works: Sequence[Callable[[StagedDecoder], Result]]) -> list[Result]:
        turns, found = Turns(cycle(range(len(works))), len(works)), dict[int, Result]()

        def run(number: int, decoder: StagedDecoder) -> None:
            decoder._waiting = partial(turns.waiting, number)
            try:
                with turns.computing(number):
                    found[number] = works[number](decoder)
            finally:
                decoder._waiting = nullcontext

        decoders = [self, *self._others][: len(works)]
        turns.run([partial(run, number, each) for number, each in enumerate(decoders)], "rows")
        return [found[number] for number in range(len(works))]

    def begin(self, rows: int, completions: Sequence[int], longest_prompt: int, longest_completion: int) -> None:
        self._rows.release()
        self._stages.sync()
        self._stages.begin(self._number)

    def release(self) -> None:
        for each in (self, *self._others):
            each._rows.release()
        self._stages.release()

    @property
    def cache_bytes(self) -> int:
        return sum(each._rows.nbytes for each in (self, *self._others))

    def prefill(self, prompts: Sequence[Sequence[int]], completions: Sequence[int]) -> Prefilled[Layers]:
        ids, padding = right_aligned(prompts, self._model.device)
        hidden, layers = self._rows.computed(ids, padding)
        with self._waiting():
            back = self._stages.prefill(hidden, padding.cpu(), self._number)
        return Prefilled(self._logits(back), tuple(len(prompt) for prompt in prompts), layers)

    def join(self, prefilled: Prefilled[Layers], which: Sequence[int]) -> None:
        super().join(prefilled, which)
        self._stages.join(which, self._number)

    def leave(self, ended: Sequence[int], holes: Sequence[int], tails: Sequence[int], rows: int) -> None:
        super().leave(ended, holes, tails, rows)
        self._stages.leave(holes, tails, rows, self._number)

    def step(self, tokens: Tensor, drafts: Drafts | None = None) -> Tensor:
        left = self._rows.step(tokens[:, None])
        with self._waiting():
            back = self._stages.step(left, self._number)
        return self._logits(back)

    def _run(self, ids: Tensor, seen: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
        """Returns the hidden states (rows, T, D) that leave the owner's layers."""
        hidden: Tensor = self._part(
            input_ids=ids, attention_mask=seen, position_ids=positions, past_key_values=cache, use_cache=True
        ).last_hidden_state
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._head(self._last_norm(hidden[:, -1]))
        return logits
