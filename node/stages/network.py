"""The learner's pass over a model whose later layers are on other machines.

The graph of a pass is cut where hidden states leave and come back. Its backward pass has three parts: from the loss to
what came back; on the other machines; and through the owner's layers, all calls of the micro-batch at once, since its
completions share the keys and values of its prompts. So autograd never waits for a machine.

All calls of a micro-batch go through the other machines one behind the other, without waiting for each other. Several
micro-batches are under way at a time, each on a thread of its own, of which one computes (``Turns``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from node.fit.stages.schedule import OwnerOrder, owner_order
from node.learner.objective.forward import Item, Network, PassSettings, Result
from node.learner.objective.network.prompt_cache import PassCache
from node.stages.cut import PartPass, last_norm_name, part_of
from node.stages.link import Asked, Call, Inputs
from node.stages.stages import Stages
from node.stages.turns import Turns


@dataclass(slots=True, eq=False)
class _Crossing:
    """One call of the body: what left this machine, and what came back."""

    asked: Asked
    left: Tensor
    back: Tensor | None = None  # None: it is still to cross


class _Under(threading.local):
    """The pass that a thread has under way."""

    def __init__(self) -> None:
        self.turns: Turns | None = None
        self.index = 0  # of the micro-batch among those of ``turns``
        self.micro_batch = 0
        self.crossings: list[_Crossing] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedNetwork(Network):
    """``body`` has all layers, those of others without weights."""

    stages: Stages
    run: PartPass  # of the owner's layers
    last_norm: torch.nn.Module
    order: OwnerOrder  # in which micro-batches are under way
    _under: _Under = field(default_factory=_Under)

    @classmethod
    def around(cls, whole: Network, own_layers: int, stages: Stages, order: OwnerOrder) -> StagedNetwork:
        """Returns the network of an owner of the first ``own_layers``; ``whole`` is that of its model."""
        given = {each.name: getattr(whole, each.name) for each in fields(Network)}
        return cls(
            **given | {"layers": (), "by_lengths": False, "packs": False},
            stages=stages,
            run=PartPass(part_of(whole.body, range(own_layers))),
            last_norm=getattr(whole.body, last_norm_name(whole.body)),
            order=order,
        )

    def begun(self, passes: PassSettings, cache: PassCache, **inputs: Tensor | None) -> Callable[[], Tensor]:
        under, rows = self._under, cache.rows
        if rows is None:
            under.micro_batch, under.crossings = next(self.stages.micro_batches), []
            if under.turns is None:
                self.stages.sync()
        left = self.run(cache, passes.recompute, passes.chunk_tokens, **inputs)
        mask, positions = inputs.get("attention_mask"), inputs.get("position_ids")
        told = Inputs(
            None if mask is None else mask.cpu(),
            None if positions is None else positions.cpu(),
            None if rows is None else rows.prompt_of.cpu(),
            0 if rows is None else rows.columns,
            passes.recompute,
            passes.chunk_tokens,
        )
        crossing = _Crossing(Asked(Call(under.micro_batch, len(under.crossings)), told), left)
        under.crossings.append(crossing)

        def hidden() -> Tensor:
            if crossing.back is None:
                self._cross()
            normed: Tensor = self.last_norm(crossing.back)
            return normed

        return hidden

    def _cross(self) -> None:
        """Lets the calls that have left this machine go through the others."""
        train = torch.is_grad_enabled()
        crossings = [each for each in self._under.crossings if each.back is None]
        left = [each.left.detach().cpu() for each in crossings]
        found = self._waiting(lambda: self.stages.forward([each.asked for each in crossings], left, train))
        for each, back in zip(crossings, found, strict=True):
            each.back = back.to(each.left.device).requires_grad_(train)

    def backward(self, loss: Tensor) -> None:
        under = self._under
        crossings, under.crossings = under.crossings[::-1], []  # that of the prompts goes back last
        loss.backward()  # type: ignore[no-untyped-call]
        calls, gradients = [each.asked.call for each in crossings], list[Tensor]()
        for each in crossings:
            assert each.back is not None
            gradients.append((torch.zeros_like(each.back) if each.back.grad is None else each.back.grad).cpu())
        found = self._waiting(lambda: self.stages.backward(calls, gradients, under.turns, under.index))
        left = [each.left for each in crossings]
        torch.autograd.backward(left, [gradient.to(own.device) for gradient, own in zip(found, left, strict=True)])

    def each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """As of ``Network``, several at a time. What one raises ends all, and drops what the stages have of them."""
        self.stages.sync()
        results: dict[int, Result] = {}
        todo = iter(enumerate(items))
        turns = Turns(owner_order(len(items), self.order), len(items))

        def work_off() -> None:
            for index, item in todo:
                self._under.index = index
                with turns.computing(index):
                    results[index] = work(item)

        def run() -> None:
            self._under.turns = turns
            work_off()

        try:
            turns.run([run] * min(self.order.begun, len(items)), "micro-batches")
            self.stages.gather()
        except BaseException:
            self.stages.forget()
            raise
        return [results[index] for index in range(len(items))]

    def _waiting(self, ask: Callable[[], Result]) -> Result:
        turns = self._under.turns
        if turns is None:
            return ask()
        with turns.waiting(self._under.index):
            return ask()
