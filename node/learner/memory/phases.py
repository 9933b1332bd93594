"""Runs the phases of a round so that running out of memory is an event and not an end.

A phase that ran out is dropped whole (``drop``), what it held is given back, ``decisions.decide`` says what follows,
the event is reported, and the phase is run again from its beginning. The same follows where a machine that holds layers
is lost, once they are held again; nothing is halved then, unless that machine's memory ran out. A phase must therefore
change nothing that lasts before its last allocation or its last call of a machine; where it does, it says how that is
undone (``undo.Undo``).

Guarantees: what ``run`` returns is the result of one whole attempt. Generation is seeded, so the repeated attempt gives
what the first would have given; a gradient from smaller passes is the same up to rounding. With fewer rows than
completions the same seed gives other samples of the same distribution.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from node.events import Event, OutOfMemory
from node.fit.fitted import FLOORS, Sizes
from node.learner.memory.abandoned import WaitAbandoned
from node.learner.memory.decisions import KEYS, Attempts, MemoryDecision, Phase, decide, grown
from node.learner.memory.device_memory import DeviceMemory
from node.learner.memory.errors import forget, give_back
from node.policy.device_faults import detail_of, is_out_of_memory
from protocol.errors import StageLostError, StorageError, TooLittleMemoryError

STOP_LOOK_SECONDS: Final = 1.0  # between two looks at whether to stop, while waiting

Result = TypeVar("Result")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SizePlan:
    """With what a learner begins, what that may become, and how it waits."""

    begin: Sizes
    most: Sizes  # as planned, whatever ran out before
    floors: Sizes = FLOORS
    remember: Callable[[Sizes], None] = lambda sizes: None  # writes them down for the next start
    sleep: Callable[[float], None] = time.sleep
    should_stop: Callable[[], str | None] = lambda: None  # asked about once a second while waiting
    # Waits until machines that were lost are replaced; returns False where the learner is to stop first.
    regain: Callable[[Callable[[], str | None]], bool] | None = None


def nothing() -> None:
    """For a phase that leaves nothing behind."""


class PhaseRunner:
    """One learner's phases. ``run`` and ``attempt`` may be called by two threads, where generation runs ahead."""

    def __init__(
        self,
        plan: SizePlan,
        *,
        use: Callable[[Sizes], None],
        report: Callable[[Event], None],
        clock: Callable[[], float],
        memory: Callable[[], DeviceMemory | None],
    ) -> None:
        """``use`` puts sizes into effect, at once and whenever they change.

        ``clock`` returns Unix time; ``memory`` is that of the device, None where it is not known.
        """
        self._sizes, self._plan, self._use = plan.begin, plan, use
        self._report, self._clock, self._memory = report, clock, memory
        self.should_stop = plan.should_stop
        self._lock = threading.Lock()
        self._quiet_rounds = 0
        self.round = 0  # under way; for events
        use(plan.begin)

    @property
    def sizes(self) -> Sizes:
        return self._sizes

    def run(self, phase: Phase, work: Callable[[], Result], drop: Callable[[], None] = nothing) -> Result:
        """Returns what ``work`` returns, repeated as often as it takes; ``drop`` drops what a failed attempt began.

        Raises ``TooLittleMemoryError`` where the smallest attempt fails, ``WaitAbandoned`` when asked to stop.
        """
        done = self._repeated(phase, work, drop)
        if done is None:
            raise ValueError(f"the phase {phase!r} may be skipped: use attempt")
        return done[0]

    def attempt(self, phase: Phase, work: Callable[[], Result], drop: Callable[[], None] = nothing) -> Result | None:
        """As ``run``, for a phase that may be left out: returns None where it was."""
        done = self._repeated(phase, work, drop)
        return None if done is None else done[0]

    def round_done(self) -> None:
        """Counts rounds without trouble; after many of them doubles what was halved."""
        with self._lock:
            self._quiet_rounds += 1
            larger = grown(self._sizes, self._plan.most, self._quiet_rounds)
            if larger != self._sizes:
                log.info("memory has not run out for %d rounds: trying %s again", self._quiet_rounds, larger)
                self._put(larger)

    def _repeated(self, phase: Phase, work: Callable[[], Result], drop: Callable[[], None]) -> tuple[Result] | None:
        attempts, regain = Attempts(), self._plan.regain
        while True:
            lost: StageLostError | None = None
            try:
                return (work(),)
            except StageLostError as error:
                if regain is None:
                    raise
                lost, detail = error, str(error)
                log.warning("a machine is lost (%s): %s", phase, detail)
                forget(error)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                detail = detail_of(error)
                log.warning("memory ran out (%s): %s", phase, detail, exc_info=attempts == Attempts())
                forget(error)
            drop()
            give_back()
            if lost is not None and regain is not None:
                if not regain(lambda: self.should_stop()):
                    raise WaitAbandoned
                if not lost.ran_out:
                    continue
            decision = self._decided(phase, attempts, detail)
            attempts = decision.attempts
            if decision.then == "skip":
                return None
            if decision.then == "give up":
                raise TooLittleMemoryError(_what_to_do(phase, decision.sizes, detail))
            if decision.then == "wait" and not self._wait(decision.wait_seconds):
                raise WaitAbandoned

    def _decided(self, phase: Phase, attempts: Attempts, detail: str) -> MemoryDecision:
        """Decides what follows, puts it into effect and reports it."""
        memory = self._memory()
        with self._lock:
            before = self._sizes
            decision = decide(phase, before, self._plan.floors, attempts, memory)
            self._quiet_rounds = 0
            if decision.sizes != before:
                self._put(decision.sizes)
        halved = decision.halved
        self._report(
            OutOfMemory(
                time_seconds=self._clock(),
                round=self.round,
                phase=phase,
                then=decision.then,
                detail=detail,
                key=KEYS[halved] if halved is not None else None,
                before=getattr(before, halved) if halved is not None else None,
                after=getattr(decision.sizes, halved) if halved is not None else None,
                wait_seconds=decision.wait_seconds,
                total_bytes=memory.total_bytes if memory is not None else None,
                free_bytes=memory.free_bytes if memory is not None else None,
                others_bytes=memory.others_bytes if memory is not None else None,
            )
        )
        return decision

    def _wait(self, seconds: float) -> bool:
        """Sleeps; returns False as soon as the learner is to stop."""
        while seconds > 0 and self.should_stop() is None:
            self._plan.sleep(min(STOP_LOOK_SECONDS, seconds))
            seconds -= STOP_LOOK_SECONDS
        return self.should_stop() is None

    def _put(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._use(sizes)
        try:
            self._plan.remember(sizes)
        except StorageError as error:
            log.warning("the next start will not know what fitted: %s", error)


def _what_to_do(phase: Phase, sizes: Sizes, detail: str) -> str:
    remedy = "or another policy.model; `starling fit MODEL` prints what each takes and what would fit"
    if phase == "generate":
        return (
            f"memory ran out in generating with engine.rows = {sizes.rows}, which is not halved further ({detail}): "
            f"choose tasks with shorter prompts and answers, policy.four_bit = true, {remedy}"
        )
    if phase == "learn":
        recomputed = "" if sizes.recompute else "learner.recompute = true, "
        return (
            f"memory ran out in learning with learner.batch_tokens = {sizes.batch_tokens}, which is not halved further "
            f'({detail}): set {recomputed}learner.optimizer = "adamw8bit" or "host", or '
            f"policy.adapter_rank = 16, {remedy}"
        )
    return (
        f"memory ran out in giving the engine new weights, though it holds nothing else ({detail}): set "
        f"policy.adapter_rank = 16 or policy.four_bit = true, {remedy}"
    )
