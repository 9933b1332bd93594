"""The learner's pass over a model whose later layers are on other machines.

The graph of a pass is cut where hidden states leave and come back. Its backward pass has three parts: from the loss to
what came back; on the other machines; and through the owner's layers, all calls of the micro-batch at once, since its
completions share the keys and values of its prompts. So autograd never waits for a machine.

Several micro-batches are under way at a time, each on a thread of its own, of which one computes (``Turns``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from itertools import count

import torch
from torch import Tensor

from node.learner.objective.forward import Item, Network, PassSettings, Result
from node.learner.objective.network.prompt_cache import PassCache
from node.stages.cut import PartPass, last_norm_name, part_of
from node.stages.link import Call, Inputs
from node.stages.stages import Stages
from node.stages.turns import Turns


@dataclass(slots=True, eq=False)
class _Crossing:
    """One call of the body: what left this machine, and what came back."""

    call: Call
    left: Tensor
    back: Tensor


class _Under(threading.local):
    """The pass that a thread has under way."""

    def __init__(self) -> None:
        self.turns: Turns | None = None
        self.thread = 0
        self.micro_batch = 0
        self.calls = 0
        self.crossings: list[_Crossing] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedNetwork(Network):
    """``body`` has all layers, those of others without weights."""

    stages: Stages
    run: PartPass  # of the owner's layers
    last_norm: torch.nn.Module
    at_once: int  # micro-batches under way
    _under: _Under = field(default_factory=_Under)
    _micro_batches: count[int] = field(default_factory=count)

    @classmethod
    def around(cls, whole: Network, own_layers: int, stages: Stages, at_once: int) -> StagedNetwork:
        """Returns the network of an owner of the first ``own_layers``; ``whole`` is that of its model. At most
        ``at_once`` micro-batches are under way."""
        given = {each.name: getattr(whole, each.name) for each in fields(Network)}
        return cls(
            **given | {"layers": (), "by_lengths": False},
            stages=stages,
            run=PartPass(part_of(whole.body, range(own_layers))),
            last_norm=getattr(whole.body, last_norm_name(whole.body)),
            at_once=at_once,
        )

    def last_hidden(self, passes: PassSettings, cache: PassCache, **inputs: Tensor | None) -> Tensor:
        under, rows, train = self._under, cache.rows, torch.is_grad_enabled()
        if rows is None:
            under.micro_batch, under.calls, under.crossings = next(self._micro_batches), 0, []
            if under.turns is None:
                self.stages.sync()
        call = Call(under.micro_batch, under.calls)
        under.calls += 1
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
        back = self._waiting(lambda: self.stages.forward(call, left, told, train))
        if train:
            under.crossings.append(_Crossing(call, left, back.requires_grad_()))
        normed: Tensor = self.last_norm(back)
        return normed

    def backward(self, loss: Tensor) -> None:
        under = self._under
        crossings, under.crossings = under.crossings[::-1], []  # that of the prompts goes back last
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [
            (each.call, torch.zeros_like(each.back) if each.back.grad is None else each.back.grad) for each in crossings
        ]
        ticket = 0 if under.turns is None else under.turns.ticket()
        found = self._waiting(lambda: self.stages.backward(gradients, under.turns, ticket))
        left = [each.left for each in crossings]
        torch.autograd.backward(left, [gradient.to(own.device) for gradient, own in zip(found, left, strict=True)])

    def each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """As of ``Network``, several at a time. What one raises ends all, and drops what the stages have of them."""
        self.stages.sync()
        results: dict[int, Result] = {}
        todo = iter(enumerate(items))
        turns = Turns(min(self.at_once, len(items)))

        def work_off() -> None:
            for index, item in todo:
                results[index] = work(item)

        def run(thread: int) -> None:
            self._under.turns, self._under.thread = turns, thread
            turns.run(thread, work_off)

        threads = [
            threading.Thread(target=run, args=(number,), name=f"micro-batch {number}")
            for number in range(min(self.at_once, len(items)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        failure, turns.failure = turns.failure, None
        try:
            if failure is not None:
                raise failure
            self.stages.gather()
        except BaseException:
            self.stages.forget()
            raise
        return [results[index] for index in range(len(items))]

    def _waiting(self, ask: Callable[[], Result]) -> Result:
        turns = self._under.turns
        if turns is None:
            return ask()
        with turns.waiting(self._under.thread):
            return ask()
