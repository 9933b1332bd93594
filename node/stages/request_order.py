"""Which requests of an owner can follow those before, so that none can bring a stage's worker to an error. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from protocol import limits
from protocol.errors import MalformedError, OversizedError
from protocol.streams import stage_messages as messages
from protocol.streams.stage_messages import StageRequest

CALLS: Final = 4096  # under way at once


@dataclass(slots=True)
class RequestOrder:
    """What an owner has asked for so far. ``factors``: the shapes that ``load`` must bring, by name."""

    layers: int  # of the whole model
    width: int  # of hidden states
    dtype: torch.dtype  # of these
    context: int | None  # positions that the model has
    factors: dict[str, tuple[int, ...]] = field(default_factory=dict)
    held: bool = False
    loaded: bool = False
    calls: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)  # under way, with their shapes
    prompts: dict[int, tuple[int, int]] = field(default_factory=dict)  # of a micro-batch: how many, of how many columns
    kept: set[int] = field(default_factory=set)  # micro-batches whose prompts will go back
    prefilled: int = 0  # prompts
    prefilled_columns: int = 0
    rows: int = 0
    columns: int = 0  # of the longest row

    def check(self, request: StageRequest, tensors: Sequence[Tensor]) -> None:
        """Takes note of ``request``, which is carried out next. Raises ``MalformedError``, ``OversizedError``."""
        match request:
            case messages.HoldLayers(first=first, last=last):
                if not first < last <= self.layers:
                    raise MalformedError(f"layers {first} to {last} of a model with {self.layers}")
                self._forget()
                self.held, self.loaded, self.rows, self.prefilled = True, False, 0, 0
            case messages.LoadFactors(names=names):
                self._need(self.held, "factors before layers")
                found = {name: tuple(each.shape) for name, each in zip(names, tensors, strict=True)}
                if found != self.factors or any(each.dtype != torch.float32 for each in tensors):
                    raise MalformedError("other factors than those of the layers that are held")
                self._need(not self.calls, "factors while a call is under way")
                self.loaded = True
            case messages.PassForward():
                self._forward(request, tensors)
            case messages.PassBackward(micro_batch=micro_batch, number=number):
                self._backward((micro_batch, number), tensors[0])
            case messages.ForgetCalls():
                self._forget()
            case messages.BeginRows():
                self._need(self.loaded, "rows before factors")
                self.rows = self.prefilled = 0
            case messages.PrefillPrompts():
                self._prefill(*tensors)
            case messages.JoinRows(which=which):
                self._need(not which or max(which) < self.prefilled, "a row of a prompt that was not computed")
                self.columns = max(self.columns if self.rows else 0, self.prefilled_columns)
                self.rows += len(which)
                self._need(self.rows <= limits.STAGE_ROWS, "more rows than a batch may have")
            case messages.LeaveRows(holes=holes, tails=tails, rows=rows):
                ends = len(holes) == len(tails) and rows <= self.rows
                ends = ends and all(each < rows for each in holes) and all(each < self.rows for each in tails)
                self._need(ends, "rows leave that are not there")
                self.rows = rows
            case messages.StepRows():
                self._need(self.loaded, "a step before factors")
                self._hidden(tensors[0])
                self._need(
                    tensors[0].shape[:2] == (self.rows, 1) and self.rows > 0, "a step of other rows than there are"
                )
                self.columns += 1
                self._fit(self.columns)
            case messages.ReleaseRows():
                self.rows = self.prefilled = 0
            case messages.AskGradients():
                self._need(self.loaded, "gradients before factors")
            case messages.StageHello():
                raise MalformedError("a second hello")

    def holds(self, factors: dict[str, tuple[int, ...]]) -> None:
        """Tells the shapes of the factors of the layers that are held now."""
        self.factors = factors

    def _forward(self, request: messages.PassForward, tensors: Sequence[Tensor]) -> None:
        self._need(self.loaded, "a pass before factors")
        hidden, given = tensors[0], iter(tensors[1:])
        self._hidden(hidden)
        rows, tokens, _ = hidden.shape
        mask, positions, prompt_of = (
            None if shape is None else next(given) for shape in (request.mask, request.positions, request.prompt_of)
        )
        micro_batch = request.micro_batch
        if (prompt_of is None) != (request.number == 0):
            raise MalformedError("a call must tell the prompts of its rows, unless it is that for the prompts")
        if (micro_batch, request.number) in self.calls or len(self.calls) >= CALLS:
            raise MalformedError("a call that is under way, or one more than there may be")
        before = 0
        if prompt_of is None:
            self._need(request.prompt_columns == 0 and micro_batch not in self.kept, "prompts twice")
            self.prompts = {of: each for of, each in self.prompts.items() if of in self.kept}
            self.prompts[micro_batch] = rows, tokens
        else:
            prompts, before = self.prompts.get(micro_batch, (0, 0))
            of = _checked(prompt_of, torch.int64, (rows,))
            self._need(
                prompts > 0 and int(of.min()) >= 0 and int(of.max()) < prompts, "rows of a prompt that is not here"
            )
            self._need(request.prompt_columns <= before, "more columns than the prompts have")
            self._need(not request.train or micro_batch in self.kept, "a call that goes back, of prompts that do not")
            before = request.prompt_columns
        self._fit(before + tokens)
        if mask is not None:
            _checked(mask, torch.bool, (rows, before + tokens))
        if positions is not None:
            self._fit(1 + int(_checked(positions, torch.int64, (rows, tokens)).max()))
            self._need(int(positions.min()) >= 0, "a position below 0")
        if request.train:
            self.calls[micro_batch, request.number] = tuple(hidden.shape)
            self.kept.add(micro_batch)

    def _backward(self, call: tuple[int, int], gradient: Tensor) -> None:
        shape = self.calls.pop(call, None)
        if shape is None:
            raise MalformedError(f"call {call} is not under way")
        _checked(gradient, self.dtype, shape)
        if call[1] == 0:
            self._need(all(of != call[0] for of, _ in self.calls), "the prompts go back before their rows")
            self.kept.discard(call[0])
            del self.prompts[call[0]]

    def _prefill(self, hidden: Tensor, padding: Tensor) -> None:
        self._need(self.loaded, "prompts before factors")
        self._hidden(hidden)
        prompts, columns, _ = hidden.shape
        of = _checked(padding, torch.int64, (prompts,))
        self._need(prompts <= limits.STAGE_ROWS and int(of.min()) >= 0 and int(of.max()) < columns, "padding")
        self._fit(columns)
        self.prefilled, self.prefilled_columns = prompts, columns

    def _hidden(self, hidden: Tensor) -> None:
        if hidden.dtype != self.dtype or hidden.dim() != 3 or hidden.shape[2] != self.width or not hidden.numel():
            raise MalformedError(f"hidden states of shape {list(hidden.shape)} in {hidden.dtype}")

    def _fit(self, columns: int) -> None:
        if self.context is not None and columns > self.context:
            raise OversizedError(f"{columns} positions of a model that has {self.context}")

    def _forget(self) -> None:
        self.calls.clear()
        self.prompts.clear()
        self.kept.clear()

    def _need(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise MalformedError(f"the request cannot follow those before it: {otherwise}")


def _checked(tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise MalformedError(f"a tensor of shape {list(tensor.shape)} in {tensor.dtype}; {list(shape)} was to come")
    return tensor
