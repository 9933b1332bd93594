"""A decoder over the owner's layers and those of other machines, which keep the keys and values of theirs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from node.engines.decoder import Drafts, Prefilled, right_aligned
from node.engines.generic import GenericDecoder
from node.engines.key_rows import Layers
from node.stages.cut import last_norm_name, part_of
from node.stages.stages import Stages


class StagedDecoder(GenericDecoder):
    """As ``GenericDecoder``; raises ``StageLostError`` where a machine is lost, and then needs ``begin``."""

    def __init__(self, model: PreTrainedModel, own_layers: int, stages: Stages) -> None:
        super().__init__(model)
        body = model.base_model
        assert body is not None
        self._part = part_of(body, range(own_layers))
        self._last_norm: torch.nn.Module = getattr(body, last_norm_name(body))
        self._head: torch.nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        self._stages = stages

    def begin(self, rows: int, completions: Sequence[int], longest_prompt: int, longest_completion: int) -> None:
        super().begin(rows, completions, longest_prompt, longest_completion)
        self._stages.sync()
        self._stages.begin()

    def release(self) -> None:
        super().release()
        self._stages.release()

    def prefill(self, prompts: Sequence[Sequence[int]], completions: Sequence[int]) -> Prefilled[Layers]:
        ids, padding = right_aligned(prompts, self._model.device)
        hidden, layers = self._rows.computed(ids, padding)
        return Prefilled(
            self._logits(self._stages.prefill(hidden, padding.cpu())), tuple(len(prompt) for prompt in prompts), layers
        )

    def join(self, prefilled: Prefilled[Layers], which: Sequence[int]) -> None:
        super().join(prefilled, which)
        self._stages.join(which)

    def leave(self, ended: Sequence[int], holes: Sequence[int], tails: Sequence[int], rows: int) -> None:
        super().leave(ended, holes, tails, rows)
        self._stages.leave(holes, tails, rows)

    def step(self, tokens: Tensor, drafts: Drafts | None = None) -> Tensor:
        return self._logits(self._stages.step(self._rows.step(tokens[:, None])))

    def _run(self, ids: Tensor, seen: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
        """Returns the hidden states (rows, T, D) that leave the owner's layers."""
        hidden: Tensor = self._part(
            input_ids=ids, attention_mask=seen, position_ids=positions, past_key_values=cache, use_cache=True
        ).last_hidden_state
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._head(self._last_norm(hidden[:, -1]))
        return logits
