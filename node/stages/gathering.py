"""An owner's machines: awaited until there are as many as it wants, given their layers, and replaced where lost.

Where a lost one stays away, or another one comes where one is missing, rounds end (``Attendance.new_plan``), and the
learner is assembled anew, as at a start: it gathers, plans and goes on from what was saved.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final

from node.engines.donors.donor_source import WaitingDonor
from node.events import StageAway, StageHeld, StagesHeld
from node.fit.stages.plan import StageMachine, StagePlan
from node.printable import printable
from node.quantities import counted, duration, layer_span, size
from node.stages.attendance import NEW_PLAN, Attendance, Away
from node.stages.link import CountedLink, StageFacts
from node.stages.stage_source import StageSource
from node.stages.stages import Stages
from protocol.errors import ConfigurationError, StageLostError, TransportError

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0  # between two looks at who waits
REMIND_SECONDS: Final = 60.0  # between two lines of the log about what is waited for
HOW: Final = "on each, `starling lend --to INVITATION`; `starling donor invite` prints an invitation for one"

ShouldStop = Callable[[], str | None]


@dataclass(frozen=True, slots=True, eq=False)
class Connected:
    """A machine that has offered itself."""

    waiting: WaitingDonor
    link: CountedLink
    facts: StageFacts

    @property
    def shown_name(self) -> str:
        return printable(self.described.name, 64)

    @property
    def described(self) -> StageMachine:
        facts = self.facts
        return StageMachine(self.waiting.name or self.waiting.peer, facts.memory_bytes, facts.pace, facts.link)


@dataclass(slots=True, eq=False)
class _Seat:
    """Who has a place, or had it last."""

    machine: Connected
    because: str = ""  # it is lost
    checked_seconds: float | None = None  # Unix time of the last check that it passed
    off: float = 0.0  # in that check, as a share of what is let pass


@dataclass(frozen=True, slots=True, eq=False)
class _Division:
    """A plan, and who gets the layers: all of the machines that it was made for, or those with the most memory."""

    plan: StagePlan
    machines: list[Connected]


@dataclass(eq=False)
class Gathering:
    """The machines of one owner. Call it from the learner's thread, but for ``lost``."""

    source: StageSource
    wanted: int
    planned: Callable[[Sequence[StageMachine]], StagePlan]  # raises ``ConfigurationError`` where they are too small
    report: Callable[[StagesHeld], None]
    clock: Callable[[], float]  # Unix time
    elapsed: Callable[[], float]  # seconds that never go back
    sleep: Callable[[float], None]
    attendance: Attendance = field(default_factory=Attendance)
    connecting: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, "connecting"))
    stages: Stages | None = None
    plan: StagePlan | None = None
    _connected: list[Connected] = field(default_factory=list)  # and without layers
    _chosen: list[Connected] = field(default_factory=list)  # of these, for the plan that comes
    _seats: list[_Seat] = field(default_factory=list)
    _offers: deque[WaitingDonor] = field(default_factory=deque)  # to be connected
    _coming: tuple[WaitingDonor, Future[tuple[CountedLink, StageFacts]]] | None = None  # being connected
    _tried: tuple[list[Connected], _Division | str] | None = None  # what came of the newest planning
    _said: tuple[str, int, float] = ("", 0, 0.0)  # what is waited for, with how many connected, and when

    def gathered(self, should_stop: ShouldStop) -> StagePlan | None:
        """Waits until as many machines are connected as are wanted. Where rounds were done before, it goes on with
        those that can hold the model, once the others have been away for long enough. Returns the plan for them, which
        ``seat`` carries out; None where the learner is to stop first.

        Raises ``ConfigurationError`` where the first ones are too small.
        """
        while should_stop() is None:
            missing = self.wanted - len(self._connected)
            if missing <= 0 and self.attendance.planned_at_seconds is None:
                self._chosen = [*self._connected]
                return self.planned([each.described for each in self._chosen])
            waits = f"{counted(max(missing, 1), 'more machine')} with layers: {HOW}"
            if missing <= 0 or self.attendance.may_go_without(self.elapsed(), missing):
                found = self._divided(self._connected)
                if isinstance(found, _Division):
                    self._chosen = found.machines
                    return found.plan
                waits = f"{waits}; {found}"
            self._look(waits)
        return None

    def seat(self, stages: Stages, plan: StagePlan) -> bool:
        """Gives the machines their layers, as ``plan`` of ``gathered`` has it. Returns False where one was lost
        meanwhile: then the others are connected as before, and ``gathered`` and a plan follow again."""
        for number, machine in enumerate(self._chosen):
            try:
                stages.fill(number, machine.link)
            except StageLostError as error:
                log.warning("%s is lost before it had its layers: %s", machine.waiting.peer, error)
                self._let_go(machine)
                self._is_away(machine, str(error))
                return False
        self._connected = [each for each in self._connected if each not in self._chosen]
        self._seats, self._chosen = [_Seat(each) for each in self._chosen], []
        self.stages, self.plan = stages, plan
        self.attendance.planned(self.elapsed())
        self._all_there()
        return True

    def lost(self, number: int, because: str) -> None:
        """A place is empty. Any thread may call it."""
        if number < len(self._seats):
            self._seats[number].because = because
            self._is_away(self._seats[number].machine, because)

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
        machine = self._seats[number].machine
        self.attendance.distrusted.add(machine.waiting.peer)
        return machine.shown_name

    @property
    def _taken(self) -> list[int]:
        places = [] if self.stages is None else self.stages.places
        return [number for number, place in enumerate(places) if place.link is not None]

    def regained(self, should_stop: ShouldStop) -> bool:
        """Waits until every place is taken again; returns False where the learner is to stop first, also for a new
        plan."""
        assert self.stages is not None and self.plan is not None
        while self.stages.empty:
            number = self.stages.empty[0]
            place, expected = self.stages.places[number], self.plan.held[number + 1].expected_bytes
            fitting = [each for each in self._connected if each.facts.memory_bytes >= expected]
            if fitting:
                chosen = fitting[0]
                self._connected.remove(chosen)
                self._seats[number] = _Seat(chosen)
                try:
                    self.stages.fill(number, chosen.link)
                except StageLostError as error:
                    log.warning("%s is lost before it had its layers: %s", chosen.waiting.peer, error)
                continue
            if should_stop() is not None:
                return False
            layers = layer_span(place.layers.start, place.layers.stop)
            waits = f"a machine with {size(expected)} for {layers}: the same one, or another; {HOW}"
            refusal = self._gone_without()
            if refusal is None:
                return False
            self._look(f"{waits}; {refusal}")
        self._all_there()
        return True

    def round_done(self) -> None:
        """Reports who holds what. Where a machine is missing, it looks for one, without waiting, and lets rounds end
        for a plan with it."""
        if self._seats and len(self._seats) < self.wanted:
            self._connect(0.0)
            if self.attendance.may_take_in(self.elapsed(), len(self._seats), self.wanted):
                self._take_in()
        self.tell()

    def tell(self, waits: str = "") -> None:
        """Reports who holds what."""
        places = self.stages.places if self.stages is not None else []
        held = () if self.plan is None else self.plan.held
        connected = len(self._connected) + len(self._taken)
        now_seconds, ago = self.clock(), self.elapsed()
        self.report(
            StagesHeld(
                time_seconds=now_seconds,
                wanted=self.wanted,
                connected=connected,
                own_layers=held[0].last if held else 0,
                stages=tuple(
                    StageHeld(
                        first=place.layers.start,
                        last=place.layers.stop,
                        peer=seat.machine.waiting.peer if place.link is not None else "",
                        name=seat.machine.waiting.name,
                        because=seat.because,
                        expected_bytes=planned.expected_bytes,
                        sent_bytes=seat.machine.link.sent_bytes,
                        received_bytes=seat.machine.link.received_bytes,
                        computed_tokens=seat.machine.link.computed_tokens,
                        computed_seconds=seat.machine.link.computed_seconds,
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
                away=tuple(
                    StageAway(each.peer, each.name, now_seconds - (ago - each.since_seconds), each.because)
                    for each in self.attendance.newest_away(self.wanted - connected)
                ),
            )
        )

    def close(self) -> None:
        if self._coming is not None:
            self._coming[1].add_done_callback(_close)
        self.connecting.shutdown(wait=False)
        self._close_spares()
        if self.stages is not None:
            self.stages.close()

    def _gone_without(self) -> str | None:
        """Lets rounds end for a plan of the machines that are left. Returns why that is not done, or not yet; None
        where it is."""
        assert self.stages is not None
        if not self._may_go_without():
            return f"after {duration(self.attendance.away_seconds)} without it, if the others can hold the model"
        self.stages.forget()  # so that the others show whether they are there
        self._drop_lost_spares()
        if not self._may_go_without():
            return "others are lost too"
        found = self._divided([*self._in_use(), *self._connected])
        if isinstance(found, str):
            return f"without it, {found}"
        self._begin_anew("without", [each.name or each.peer for each in self.attendance.newest_away(self._missing())])
        return None

    def _take_in(self) -> None:
        """Lets rounds end for a plan with a machine that has come, if it has room for layers."""
        self._drop_lost_spares()
        in_use = self._in_use()
        found = self._divided([*in_use, *self._connected]) if self._connected else ""
        if isinstance(found, _Division) and len(found.machines) > len(in_use):
            new = [each.described.name for each in found.machines if each not in in_use]
            self._begin_anew("with", new)

    def _begin_anew(self, how: str, names: Sequence[str]) -> None:
        """The machines that are there are awaited from now on, like those that are not."""
        log.warning("layers are divided anew %s %s", how, ", ".join(printable(each, 64) for each in names))
        for machine in (*self._in_use(), *self._connected):
            self._is_away(machine, "it has not come back since layers are divided anew")
        self.attendance.new_plan = NEW_PLAN

    def _divided(self, machines: list[Connected]) -> _Division | str:
        """Returns a plan for as many of the machines as can be used, at most as many as are wanted; or why there is
        none."""
        if self._tried is None or self._tried[0] != machines:  # planning takes a while
            self._tried = [*machines], self._newly_divided(machines)
        return self._tried[1]

    def _newly_divided(self, machines: list[Connected]) -> _Division | str:
        by_memory = sorted(machines, key=lambda each: -each.facts.memory_bytes)[: self.wanted]
        refusal = "no other machine is there"
        while by_memory:
            chosen = [each for each in machines if each in by_memory]
            try:
                return _Division(self.planned([each.described for each in chosen]), chosen)
            except ConfigurationError as error:
                refusal = str(error)
            by_memory.pop()
        return refusal

    def _in_use(self) -> list[Connected]:
        return [self._seats[number].machine for number in self._taken]

    def _missing(self) -> int:
        return self.wanted - len(self._in_use()) - len(self._connected)

    def _may_go_without(self) -> bool:
        return self.attendance.may_go_without(self.elapsed(), self._missing())

    def _is_away(self, machine: Connected, because: str) -> None:
        self.attendance.lost(Away(machine.waiting.peer, machine.waiting.name, self.elapsed(), because))

    def _all_there(self) -> None:
        """Every place is taken: spare machines are let go, unless a later plan may take them in."""
        if len(self._seats) >= self.wanted:
            self._close_spares()
        self._said = ("", 0, 0.0)
        self.tell()

    def _look(self, waits: str) -> None:
        """Says what is waited for, and waits for a machine to connect, or for a moment."""
        text, connected, at_seconds = self._said
        now_seconds, is_new = self.elapsed(), (waits, len(self._connected)) != (text, connected)
        if is_new or now_seconds - at_seconds >= REMIND_SECONDS:
            log.info("waiting for %s", waits)
            self._said = waits, len(self._connected), now_seconds
        if is_new:
            self.tell(waits)
        if not self._connect(LOOK_SECONDS):
            self.sleep(LOOK_SECONDS)

    def _connect(self, seconds: float) -> bool:
        """Connects to the machines that wait, one after the other, which may have to fetch the model first. Returns
        False where none is left."""
        if self._coming is None:
            self._offers = self._offers or deque(self._new_ones())
            if not self._offers:
                return False
            waiting = self._offers.popleft()
            self._coming = waiting, self.connecting.submit(self.source.use, waiting.peer)
        waiting, coming = self._coming
        if not wait([coming], seconds).done:
            return True
        self._coming = None
        try:
            link, facts = coming.result()
        except (StageLostError, TransportError) as error:
            log.warning("%s cannot hold layers: %s", waiting.peer, error)
            return bool(self._offers)
        for earlier in [each for each in self._connected if each.waiting.peer == waiting.peer]:
            self._let_go(earlier)
        machine = Connected(waiting, link, facts)
        self._connected.append(machine)
        self.attendance.found(waiting.peer)
        log.info(
            "%s has room for layers of %s; the link to it carries %.0f Mbit/s, %.1f ms one way; this machine works "
            "%.1f ms on a message, and %.0f ms on a megabyte",
            machine.shown_name,
            size(facts.memory_bytes),
            8e-6 * facts.link.bytes_a_second,
            1e3 * facts.link.delay_seconds,
            1e3 * facts.link.work_seconds,
            1e9 * facts.link.work_seconds_a_byte,
        )
        return True

    def _new_ones(self) -> list[WaitingDonor]:
        shut_out = {each.waiting.peer for each in self._in_use()} | self.attendance.distrusted
        return [each for each in self.source.waiting() if each.peer not in shut_out]

    def _drop_lost_spares(self) -> None:
        for machine in [*self._connected]:
            try:
                machine.link.forget()
            except StageLostError as error:
                self._let_go(machine)
                self._is_away(machine, str(error))

    def _let_go(self, machine: Connected) -> None:
        self._connected.remove(machine)
        machine.link.close()

    def _close_spares(self) -> None:
        for machine in [*self._connected]:
            self._let_go(machine)


def _close(connecting: Future[tuple[CountedLink, StageFacts]]) -> None:
    if connecting.exception() is None:
        connecting.result()[0].close()
