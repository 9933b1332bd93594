"""An owner's machines: awaited until there are as many as it wants, given their layers, and replaced where lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final

from node.engines.donors.donor_source import WaitingDonor
from node.events import StageHeld, StagesHeld
from node.fit.stages.plan import StageMachine, StagePlan
from node.printable import printable
from node.quantities import counted, layer_span, size
from node.stages.link import CountedLink, StageFacts
from node.stages.stage_source import StageSource
from node.stages.stages import Stages
from protocol.errors import StageLostError, TransportError

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0  # between two looks at who waits
REMIND_SECONDS: Final = 60.0  # between two lines of the log about what is waited for
HOW: Final = "on each, `starling lend --to INVITATION`; `starling donor invite` prints an invitation for one"

ShouldStop = Callable[[], str | None]


@dataclass(frozen=True, slots=True, eq=False)
class Connected:
    """A machine that has offered itself and has no layers yet."""

    waiting: WaitingDonor
    link: CountedLink
    facts: StageFacts


@dataclass(slots=True, eq=False)
class _Seat:
    """Who has a place, or had it last."""

    waiting: WaitingDonor
    link: CountedLink
    because: str = ""  # it is lost
    checked_seconds: float | None = None  # Unix time of the last check that it passed
    off: float = 0.0  # in that check, as a share of what is let pass


@dataclass(eq=False)
class Gathering:
    """The machines of one owner. Call it from the learner's thread, but for ``lost``."""

    source: StageSource
    wanted: int
    report: Callable[[StagesHeld], None]
    clock: Callable[[], float]  # Unix time
    sleep: Callable[[float], None]
    stages: Stages | None = None
    plan: StagePlan | None = None
    _connected: list[Connected] = field(default_factory=list)
    _seats: list[_Seat] = field(default_factory=list)
    _distrusted: set[str] = field(default_factory=set)  # peers
    _connecting: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "connecting"))

    def gathered(self, should_stop: ShouldStop) -> Sequence[StageMachine] | None:
        """Waits until as many machines are connected as are wanted; None where the learner is to stop first."""
        while len(self._connected) < self.wanted:
            missing = self.wanted - len(self._connected)
            if not self._more(should_stop, f"{counted(missing, 'more machine')} with layers: {HOW}"):
                return None
        return [
            StageMachine(
                each.waiting.name or each.waiting.peer, each.facts.memory_bytes, each.facts.pace, each.facts.link
            )
            for each in self._connected
        ]

    def seat(self, stages: Stages, plan: StagePlan) -> bool:
        """Gives the machines their layers, as ``plan`` has it. Returns False where one was lost meanwhile: then the
        others are connected as before, and ``gathered`` and a plan follow again."""
        for number, machine in enumerate(self._connected):
            try:
                stages.fill(number, machine.link)
            except StageLostError as error:
                log.warning("%s is lost before it had its layers: %s", machine.waiting.peer, error)
                self._connected.remove(machine)
                return False
        self._seats = [_Seat(each.waiting, each.link) for each in self._connected]
        self.stages, self.plan, self._connected = stages, plan, []
        self.tell()
        return True

    def lost(self, number: int, because: str) -> None:
        """A place is empty. Any thread may call it."""
        if number < len(self._seats):
            self._seats[number].because = because

    @property
    def unchecked(self) -> list[int]:
        """The places whose machines have passed no check since they got their layers."""
        return [number for number in self._taken if self._seats[number].checked_seconds is None]

    @property
    def checked_longest_ago(self) -> int | None:
        """The place whose machine is to be checked next; None where no place is taken."""
        return min(self._taken, key=lambda number: self.checked_at(number) or 0.0, default=None)

    def checked_at(self, number: int) -> float | None:
        """Returns the Unix time of the last check that the machine of a place has passed."""
        return self._seats[number].checked_seconds

    def passed(self, number: int, off: float) -> None:
        """A machine has passed a check; it was ``off`` by that share of what is let pass."""
        self._seats[number].checked_seconds, self._seats[number].off = self.clock(), off

    def distrust(self, number: int) -> str:
        """The peer in a place is connected to no more; returns its name."""
        waiting = self._seats[number].waiting
        self._distrusted.add(waiting.peer)
        return printable(waiting.name or waiting.peer, 64)

    @property
    def _taken(self) -> list[int]:
        places = [] if self.stages is None else self.stages.places
        return [number for number, place in enumerate(places) if place.link is not None]

    def regained(self, should_stop: ShouldStop) -> bool:
        """Waits until every place is taken again; returns False where the learner is to stop first."""
        assert self.stages is not None and self.plan is not None
        while self.stages.empty:
            number = self.stages.empty[0]
            place, expected = self.stages.places[number], self.plan.held[number + 1].expected_bytes
            fitting = [each for each in self._connected if each.facts.memory_bytes >= expected]
            if fitting:
                chosen = fitting[0]
                self._connected.remove(chosen)
                self._seats[number] = _Seat(chosen.waiting, chosen.link)
                try:
                    self.stages.fill(number, chosen.link)
                except StageLostError as error:
                    log.warning("%s is lost before it had its layers: %s", chosen.waiting.peer, error)
                continue
            layers = layer_span(place.layers.start, place.layers.stop)
            waits = f"a machine with {size(expected)} for {layers}: the same one, or another; {HOW}"
            if not self._more(should_stop, waits):
                return False
        for spare in self._connected:
            spare.link.close()
        self._connected = []
        self.tell()
        return True

    def tell(self, waits: str = "") -> None:
        """Reports who holds what."""
        places = self.stages.places if self.stages is not None else []
        held = () if self.plan is None else self.plan.held
        self.report(
            StagesHeld(
                time_seconds=self.clock(),
                wanted=self.wanted,
                connected=len(self._connected) + sum(place.link is not None for place in places),
                own_layers=held[0].last if held else 0,
                stages=tuple(
                    StageHeld(
                        first=place.layers.start,
                        last=place.layers.stop,
                        peer=seat.waiting.peer if place.link is not None else "",
                        name=seat.waiting.name,
                        because=seat.because,
                        expected_bytes=planned.expected_bytes,
                        sent_bytes=seat.link.sent_bytes,
                        received_bytes=seat.link.received_bytes,
                        computed_tokens=seat.link.computed_tokens,
                        computed_seconds=seat.link.computed_seconds,
                        checked_seconds=seat.checked_seconds,
                        off=seat.off,
                    )
                    for place, seat, planned in zip(places, self._seats, held[1:], strict=True)
                ),
                waits=waits,
                because="" if self.plan is None else self.plan.because,
                own_expected_bytes=held[0].expected_bytes if held else 0,
                generating_seconds=0.0 if self.plan is None else self.plan.generating_seconds,
                learning_seconds=0.0 if self.plan is None else self.plan.training_seconds,
            )
        )

    def close(self) -> None:
        self._connecting.shutdown(wait=False, cancel_futures=True)
        for each in self._connected:
            each.link.close()
        self._connected = []
        if self.stages is not None:
            self.stages.close()

    def _more(self, should_stop: ShouldStop, waits: str) -> bool:
        """Waits for one more machine, and connects to it; returns False where the learner is to stop first."""
        log.info("waiting for %s", waits)
        self.tell(waits)
        seconds = 0.0
        while should_stop() is None:
            for waiting in self.source.waiting():
                if waiting.peer in self._distrusted:
                    continue
                try:
                    used = self._used(waiting.peer, should_stop)
                except (StageLostError, TransportError) as error:
                    log.warning("%s cannot hold layers: %s", waiting.peer, error)
                    continue
                if used is None:
                    return False
                self._connected.append(Connected(waiting, *used))
                _, facts = used
                log.info(
                    "%s has room for layers of %s; the link to it carries %.0f Mbit/s, %.1f ms one way",
                    printable(waiting.name or waiting.peer, 64),
                    size(facts.memory_bytes),
                    8e-6 * facts.link.bytes_a_second,
                    1e3 * facts.link.delay_seconds,
                )
                return True
            self.sleep(LOOK_SECONDS)
            seconds += LOOK_SECONDS
            if seconds % REMIND_SECONDS == 0:
                log.info("still waiting for %s", waits)
        return False

    def _used(self, peer: str, should_stop: ShouldStop) -> tuple[CountedLink, StageFacts] | None:
        """Returns the connection to a machine, which may have to fetch the model first; None where the learner is to
        stop meanwhile."""
        connecting = self._connecting.submit(self.source.use, peer)
        while not wait([connecting], LOOK_SECONDS).done:
            if should_stop() is not None:
                connecting.add_done_callback(_close)
                return None
        return connecting.result()


def _close(connecting: Future[tuple[CountedLink, StageFacts]]) -> None:
    if connecting.exception() is None:
        connecting.result()[0].close()
