"""The machines beside the owner's, in the order of their layers, as one: hidden states go through all of them.

Each is asked by the owner alone. What the factors of its layers are it is told before a pass or a batch in which they
differ from what it was told last, whoever has changed them meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final, Protocol, TypeVar

import torch
from torch import Tensor

from node.quantities import layer_span
from node.stages.link import Answer, Asked, Call, StageLink, here
from node.stages.turns import Turns
from protocol.errors import StageLostError

Given = TypeVar("Given")

_LAYER: Final = re.compile(r"\.layers\.(\d+)\.")


class _Ask(Protocol):
    def __call__(self, link: StageLink, given: Tensor) -> Tensor: ...


class _AskOne(Protocol):
    def __call__(self, link: StageLink, at: int, each: Tensor) -> Answer: ...


@dataclass(slots=True, eq=False)
class Place:
    """Some layers, and the machine that holds them."""

    layers: range
    factors: dict[str, torch.nn.Parameter]  # of the owner, live
    link: StageLink | None = None  # None: nobody holds them
    told: dict[str, Tensor] = field(default_factory=dict)  # what the machine was told last
    lost: StageLostError | None = None  # how the last machine was lost, while nobody holds them

    def held(self) -> StageLink:
        """Returns the machine's link. Raises ``StageLostError`` where there is none, with the cause: of several threads
        that ask, the first whose call fails may not be the one that is heard first."""
        link = self.link
        if link is None:
            because = "" if self.lost is None else f": {self.lost}"
            layers = layer_span(self.layers.start, self.layers.stop)
            ran_out = self.lost is not None and self.lost.ran_out
            raise StageLostError(f"no machine holds {layers} now{because}", ran_out=ran_out)
        return link


class Stages:
    """The places of the layers that the owner does not hold. A machine is lost with the first call that fails, and its
    place is empty until ``fill``; meanwhile every call raises ``StageLostError``."""

    def __init__(
        self,
        trained: Mapping[str, torch.nn.Parameter],
        layers: Sequence[range],
        lost: Callable[[int, str], None] = lambda place, because: None,
    ) -> None:
        """``trained``: the owner's factors, of all layers; ``lost`` is told of a place whose machine is lost."""
        self.places: Final = [
            Place(each, {name: p for name, p in trained.items() if layer_of(name) in each}) for each in layers
        ]
        self._lost = lost
        self.micro_batches: Final = count()  # which number the next one has

    @property
    def empty(self) -> list[int]:
        return [number for number, place in enumerate(self.places) if place.link is None]

    def fill(self, number: int, link: StageLink) -> None:
        """Gives a place to a machine, which reads its layers. Raises ``StageLostError`` where it is lost in it."""
        place = self.places[number]
        place.link, place.told, place.lost = link, {}, None
        self._asked(number, lambda held: held.hold(place.layers))

    def lose(self, number: int, because: str) -> None:
        """Empties a place whose machine is not to be used any more."""

        def gone(link: StageLink) -> None:
            raise StageLostError(because)

        with suppress(StageLostError):
            self._asked(number, gone)

    def sync(self) -> None:
        """Tells each machine its factors, where they are others than it has."""
        for number, place in enumerate(self.places):
            present = {name: p.detach().cpu() for name, p in place.factors.items()}
            if not all(name in place.told and torch.equal(place.told[name], p) for name, p in present.items()):
                self._load(number, {name: p.clone() for name, p in present.items()})

    def _load(self, number: int, factors: dict[str, Tensor]) -> None:
        self.places[number].told = {}
        self._asked(number, lambda link: link.load(factors))
        self.places[number].told = factors

    def forward(self, asked: Sequence[Asked], hidden: Sequence[Tensor], train: bool) -> list[Tensor]:
        """Returns what leaves the last layer of all for what left the owner's last, in calls of one micro-batch; each
        goes on to the next machine when it comes."""

        def ask(link: StageLink, at: int, each: Tensor) -> Answer:
            return link.forward(asked[at].call, each, asked[at].inputs, train)

        given = [here(each) for each in hidden]
        for number in range(len(self.places)):
            given = self._passed_on(number, given, ask, nullcontext())
        return [each() for each in given]

    def backward(
        self, calls: Sequence[Call], gradients: Sequence[Tensor], turns: Turns | None = None, micro_batch: int = 0
    ) -> list[Tensor]:
        """Returns the gradients of what left the owner's last layer, for those of what left the last of all: calls of
        one micro-batch, that for its prompts last. With ``turns``, passes come to each machine in the order of
        micro-batches."""

        def ask(link: StageLink, at: int, each: Tensor) -> Answer:
            return link.backward(calls[at], each)

        given = [here(each) for each in gradients]
        for number in reversed(range(len(self.places))):
            turn = nullcontext() if turns is None else turns.at_machine(number, micro_batch)
            given = self._passed_on(number, given, ask, turn)
        return [each() for each in given]

    def _passed_on(
        self, number: int, given: Sequence[Answer], ask: _AskOne, turn: AbstractContextManager[None]
    ) -> list[Answer]:
        """Asks a machine for what is ``given``, as it comes, within ``turn``."""
        with turn:
            asked = [self._asked(number, partial(ask, at=at, each=each())) for at, each in enumerate(given)]
        return [partial(self._asked, number, partial(_answered, answer=answer)) for answer in asked]

    def gather(self) -> None:
        """Adds the machines' gradients to those of the owner's factors."""
        for number, place in enumerate(self.places):
            for name, gradient in self._asked(number, lambda link: link.gradients()).items():
                parameter = place.factors[name]
                own = gradient.to(parameter.device)
                parameter.grad = own if parameter.grad is None else parameter.grad.add_(own)

    def forget(self) -> None:
        """Lets every machine drop passes that are under way."""
        self._tell(lambda link: link.forget())

    def begin(self, batch: int) -> None:
        for number in range(len(self.places)):
            self._asked(number, lambda link: link.begin(batch))

    def prefill(self, hidden: Tensor, padding: Tensor, batch: int) -> Tensor:
        return self._through(hidden, lambda link, given: link.prefill(given, padding, batch))

    def join(self, which: Sequence[int], batch: int) -> None:
        for number in range(len(self.places)):
            self._asked(number, lambda link: link.join(which, batch))

    def leave(self, holes: Sequence[int], tails: Sequence[int], rows: int, batch: int) -> None:
        for number in range(len(self.places)):
            self._asked(number, lambda link: link.leave(holes, tails, rows, batch))

    def step(self, hidden: Tensor, batch: int) -> Tensor:
        return self._through(hidden, lambda link, given: link.step(given, batch))

    def release(self) -> None:
        self._tell(lambda link: link.release())

    def close(self) -> None:
        for place in self.places:
            if place.link is not None:
                place.link.close()
                place.link = None

    def _through(self, hidden: Tensor, ask: _Ask) -> Tensor:
        given = hidden.detach().cpu()
        for number in range(len(self.places)):
            given = self._asked(number, partial(ask, given=given))
        return given.to(hidden.device)

    def _tell(self, tell: Callable[[StageLink], None]) -> None:
        """For what a lost machine need not be told."""
        for number, place in enumerate(self.places):
            if place.link is not None:
                with suppress(StageLostError):
                    self._asked(number, tell)

    def _asked(self, number: int, ask: Callable[[StageLink], Given]) -> Given:
        place = self.places[number]
        link = place.held()
        try:
            return ask(link)
        except StageLostError as error:
            if place.link is link:
                place.lost = StageLostError(str(error), ran_out=error.ran_out)  # without the frames of ``error``
                place.link = None
                link.close()
                self._lost(number, str(error))
            raise


def _answered(link: StageLink, answer: Answer) -> Tensor:
    return answer()


def layer_of(name: str) -> int | None:
    """Returns the layer of a factor, counted from 0."""
    found = _LAYER.search(name)
    return None if found is None else int(found.group(1))
