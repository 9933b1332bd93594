"""The machine that holds layers and nothing else: it computes them, in the learner's pass and in the engine's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import DynamicCache

from node.engines.key_rows import KeyRows, Layers
from node.learner.objective.forward import Network, use_one_call_layers
from node.learner.objective.network.prompt_cache import PassCache, PromptRows
from node.policy.held_layers import held_bytes, hold_layers, layers_of
from node.policy.policy import Policy
from node.stages.cut import PartPass, part_of
from node.stages.link import Answer, Call, Inputs, here
from protocol.errors import MalformedError


@dataclass(slots=True, eq=False)
class _Prompts:
    """Of one micro-batch: keys and values of its prompts as they were computed, and as its other calls see them."""

    cache: PassCache
    count: int
    columns: int
    computed: list[Tensor] = field(default_factory=list)
    seen: list[Tensor] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Batch:
    """Rows that are sampled, and the prompts of the last ``prefill``: keys and values, and lengths."""

    rows: KeyRows
    prefilled: tuple[Layers, list[int]] | None = None


class StageWorker:
    """``StageLink`` in this process; one thread at a time may call it.

    Raises ``MalformedError`` for what no owner asks for, and what torch raises where memory runs out; then what was
    under way is of no use, and the next call may be any.
    """

    def __init__(self, policy: Policy, folder: Path) -> None:
        """``policy`` is without weights (``Policy.without_weights``), of the model in ``folder``."""
        self.policy, self._folder = policy, folder
        self.layers_in_all = len(layers_of(policy))
        self.hidden_size = int(policy.base.config.hidden_size)
        Network.of(policy.model)  # lets the model attend as the learner's pass does
        self.layers = range(0)
        self._factors: dict[str, torch.nn.Parameter] = {}
        self.forget()
        self.release()

    @property
    def held_bytes(self) -> int:
        """Of weights and factors."""
        return held_bytes(self.policy)

    @property
    def cache_bytes(self) -> int:
        """Of keys and values of the rows that are sampled."""
        return sum(each.rows.nbytes for each in self._batches.values())

    def hold(self, layers: range) -> None:
        if layers.step != 1 or not 0 <= layers.start < layers.stop <= self.layers_in_all:
            raise MalformedError(f"layers {layers.start} to {layers.stop} of {self.layers_in_all}")
        self._take(layers)
        body = self.policy.base.base_model
        assert body is not None
        self._pass = PartPass(part_of(body, layers))

    def free(self) -> None:
        """Holds no layer from now on."""
        self._take(range(0))

    @torch.no_grad()
    def load(self, factors: Mapping[str, Tensor]) -> None:
        if factors.keys() != self._factors.keys():
            raise MalformedError(f"{len(factors)} factors for layers that have {len(self._factors)}, or of other names")
        for name, factor in factors.items():
            if factor.shape != self._factors[name].shape:
                raise MalformedError(f"the factor {name} has the shape {tuple(factor.shape)}")
        for name, factor in factors.items():
            self._factors[name].copy_(factor)

    def forward(self, call: Call, hidden: Tensor, inputs: Inputs, train: bool) -> Answer:
        with torch.set_grad_enabled(train):
            entered = self._given(hidden).requires_grad_(train)
            cache, prompts = self._cache_of(call, entered, inputs, train)
            left = self._pass(
                cache,
                inputs.recompute,
                inputs.chunk_tokens,
                inputs_embeds=entered,
                attention_mask=_sent(inputs.mask, self.policy.device),
                position_ids=_sent(inputs.positions, self.policy.device),
            )
        if train:
            self._calls[call] = (entered, left)
            if call.number == 0:
                prompts.computed, prompts.seen = cache.cut()
        return here(left.detach().cpu())

    def backward(self, call: Call, gradient: Tensor) -> Answer:
        if call not in self._calls:
            raise MalformedError(f"call {call.number} of micro-batch {call.micro_batch} is not under way")
        entered, left = self._calls.pop(call)
        if gradient.shape != left.shape:
            raise MalformedError(f"a gradient of {tuple(gradient.shape)} for hidden states of {tuple(left.shape)}")
        tensors, gradients = [left], [self._given(gradient)]
        if call.number == 0:
            prompts = self._prompts.pop(call.micro_batch)
            for computed, seen in zip(prompts.computed, prompts.seen, strict=True):
                if seen.grad is not None:
                    tensors.append(computed)
                    gradients.append(seen.grad)
        torch.autograd.backward(tensors, gradients)
        assert entered.grad is not None
        return here(entered.grad.cpu())

    def gradients(self) -> dict[str, Tensor]:
        found = {name: p.grad.cpu() for name, p in self._factors.items() if p.grad is not None}
        self._drop_gradients()
        return found

    def forget(self) -> None:
        self._prompts: dict[int, _Prompts] = {}
        self._untrained: tuple[int, _Prompts] | None = None
        self._calls: dict[Call, tuple[Tensor, Tensor]] = {}  # hidden states that came, and those that left
        self._drop_gradients()

    def begin(self, batch: int = 0) -> None:
        self._batches.pop(batch, None)

    @torch.inference_mode()
    def prefill(self, hidden: Tensor, padding: Tensor, batch: int = 0) -> Tensor:
        if padding.shape != hidden.shape[:1] or not bool(((padding >= 0) & (padding < hidden.shape[1])).all()):
            raise MalformedError(f"padding of {tuple(padding.shape)} for prompts of {tuple(hidden.shape)}")
        given, found = self._given(hidden), self._batch(batch)
        found.prefilled = None
        left, layers = found.rows.computed(given, padding.to(self.policy.device))
        found.prefilled = layers, (hidden.shape[1] - padding).tolist()
        return left.cpu()

    @torch.inference_mode()
    def join(self, which: Sequence[int], batch: int = 0) -> None:
        found = self._batch(batch)
        prompts = 0 if found.prefilled is None else len(found.prefilled[1])
        if found.prefilled is None or not which or not all(0 <= each < prompts for each in which):
            raise MalformedError(f"{len(which)} rows join, not all of them after one of {prompts} prompts")
        found.rows.join(*found.prefilled, which)

    @torch.inference_mode()
    def leave(self, holes: Sequence[int], tails: Sequence[int], rows: int, batch: int = 0) -> None:
        of_batch = self._batch(batch).rows
        before = of_batch.count
        if not 0 <= rows <= before or len(holes) != len(tails) or not all(0 <= each < rows for each in holes):
            raise MalformedError(f"a batch of {before} rows cannot shrink to {rows} so")
        if not all(rows <= each < before for each in tails):
            raise MalformedError(f"a batch of {before} rows cannot shrink to {rows} so")
        of_batch.leave(holes, tails, rows)

    @torch.inference_mode()
    def step(self, hidden: Tensor, batch: int = 0) -> Tensor:
        rows = self._batch(batch).rows
        if not len(hidden) == rows.count > 0 or hidden.shape[1] != 1:
            raise MalformedError(f"a step of {tuple(hidden.shape)} for {rows.count} rows")
        return rows.step(self._given(hidden)).cpu()

    def release(self) -> None:
        self._batches: dict[int, _Batch] = {}

    def close(self) -> None:
        return

    def _take(self, layers: range) -> None:
        self.forget()
        self.release()
        hold_layers(self.policy, self._folder, layers, ends=False, factors=True)
        use_one_call_layers(self.policy.base, self.policy.device)
        self.layers = layers
        self._factors = {name: p for name, p in self.policy.trainable().items() if not p.is_meta}

    def _batch(self, number: int) -> _Batch:
        if number not in self._batches:
            self._batches[number] = _Batch(KeyRows(self._run_rows, self.policy.device))
        return self._batches[number]

    def _given(self, hidden: Tensor) -> Tensor:
        if not self.layers or hidden.ndim != 3 or 0 in hidden.shape or hidden.shape[2] != self.hidden_size:
            raise MalformedError(
                f"hidden states of {tuple(hidden.shape)} for {len(self.layers)} layers {self.hidden_size} wide"
            )
        return hidden.detach().to(self.policy.device, self.policy.dtype)

    def _cache_of(self, call: Call, hidden: Tensor, inputs: Inputs, train: bool) -> tuple[PassCache, _Prompts]:
        """Returns the cache of a call, and the prompts that it computes or follows. Checks what is told beside hidden
        states."""
        rows, width = hidden.shape[:2]
        columns = width
        if (call.number == 0) != (inputs.prompt_of is None) or call in self._calls:
            raise MalformedError(f"call {call.number} of micro-batch {call.micro_batch} is not one that can follow")
        if inputs.prompt_of is None:
            prompts = _Prompts(PassCache(), rows, width)
            if train and call.micro_batch in self._prompts:
                raise MalformedError(f"micro-batch {call.micro_batch} is under way already")
            cache = prompts.cache
            if train:
                self._prompts[call.micro_batch] = prompts
            else:
                self._untrained = call.micro_batch, prompts
        else:
            held = self._prompts if train else dict([self._untrained] if self._untrained else ())
            if call.micro_batch not in held:
                raise MalformedError(f"the prompts of micro-batch {call.micro_batch} are not here")
            prompts = held[call.micro_batch]
            of = inputs.prompt_of
            if of.shape != (rows,) or not bool(((of >= 0) & (of < prompts.count)).all()):
                raise MalformedError(f"{rows} rows do not each follow one of {prompts.count} prompts")
            if not 0 < inputs.prompt_columns <= prompts.columns:
                raise MalformedError(f"prompts of {inputs.prompt_columns} tokens among those of {prompts.columns}")
            columns += inputs.prompt_columns
            cache = PassCache(prompts.cache, PromptRows(of.to(self.policy.device), inputs.prompt_columns))
        if inputs.mask is not None and inputs.mask.shape != (rows, columns):
            raise MalformedError(f"a mask of {tuple(inputs.mask.shape)} for {rows} rows of {columns} columns")
        if inputs.positions is not None:
            context = self.policy.context or 1 << 30
            most = int(inputs.positions.max()) if inputs.positions.shape == (rows, width) else -1
            if not 0 <= most < context or int(inputs.positions.min()) < 0:
                raise MalformedError(f"positions of {tuple(inputs.positions.shape)} up to {most}")
        return cache, prompts

    def _run_rows(self, hidden: Tensor, seen: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
        part = self._pass.part
        output = part(
            inputs_embeds=hidden, attention_mask=seen, position_ids=positions, past_key_values=cache, use_cache=True
        )
        left: Tensor = output.last_hidden_state
        return left

    def _drop_gradients(self) -> None:
        for parameter in self._factors.values():
            parameter.grad = None


def _sent(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(device)
