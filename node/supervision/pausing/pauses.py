"""Carries a decision to pause out: ends the learner, keeps it from starting, and tells what is the case.

A pause ends the learner's process after it has finished its step and checkpointed. That gives back all of its memory,
that of a GPU too, which a process that merely waits would keep. A learner that does not end in time is killed and
continues later from its last checkpoint. ``RunBudget`` is what is left of ``--rounds`` and ``--tokens`` for it.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from node.api.answers import paused_line, paused_sentence
from node.api.types import Paused
from node.events import PAUSE_LINE, CheckpointSaved, Event, LearnerReady, LearnerStart, RoundDone, Stopped
from node.supervision import restarts
from node.supervision.children import Child, ChildSpec
from node.supervision.pausing.decision import PauseDecision
from node.supervision.restarts import ChildEnd

ROUNDS_REMEMBERED: Final = 256  # between a round and the end of its checkpoint


class LearnerPauses:
    """The pauses of one node's learner. ``follow`` is called for every decision, in the supervisor's loop."""

    def __init__(
        self,
        first: PauseDecision,
        limit_seconds: float,
        note: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        """``limit_seconds`` is the time for a learner to end; ``clock`` gives Unix time."""
        self._decision, self._limit_seconds, self._note, self._clock = first, limit_seconds, note, clock
        self._since_seconds = clock()
        self._over = asyncio.Event()
        self._ending: Child | None = None  # for the pause
        self._killer: asyncio.TimerHandle | None = None
        self._told = first.run
        if first.run:
            self._over.set()

    def _line(self) -> str:
        assert self.paused is not None
        return paused_line(self.paused, self._clock())

    @property
    def paused(self) -> Paused | None:
        if self._decision.run:
            return None
        return Paused(self._since_seconds, self._decision.because, self._decision.until_seconds)

    def doing(self, learner: Child | None) -> str:
        """Returns what a node that pauses does now, in words; empty while it trains."""
        if self.paused is None:
            return ""
        if learner is not None and learner.pid is not None:
            return f"pausing ({self._decision.because}): the learner finishes its step and checkpoints"
        return self._line()

    def follow(self, decision: PauseDecision, learner: Child | None, *, at_once: bool = False) -> None:
        """Puts ``decision`` into effect. ``at_once`` kills a learner that would have to finish its step."""
        before, self._decision = self._decision, decision
        if decision.run:
            if not before.run:
                self._note("Training again." if not decision.because else f"Training again: {decision.because}.")
                self._over.set()
            self._told = True
            return
        if before.run:
            self._since_seconds = self._clock()
            self._over.clear()
        if before.run or not self._told or before.cause != decision.cause:
            self._told = True
            assert self.paused is not None
            self._note(paused_sentence(self.paused, self._clock()))
        if learner is not None and learner.pid is not None:
            self._end(learner, at_once=at_once)

    async def until_over(self, stop: asyncio.Event) -> None:
        """Returns when the learner may run, or the node stops."""
        waits = [asyncio.create_task(self._over.wait()), asyncio.create_task(stop.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    def was_for(self, child: Child, stopped: Stopped | None) -> bool:
        """Whether ``child`` ended for a pause; ``stopped`` is its last event. It may have been done in that moment."""
        return child is self._ending and (stopped is None or stopped.because not in ("rounds", "tokens"))

    def ended(self, end: ChildEnd, spec: ChildSpec, first_line: bytes) -> ChildSpec:
        """The learner has ended for a pause. Returns how it is started again, with ``first_line``."""
        if self._killer is not None:
            self._killer.cancel()
        self._ending = self._killer = None
        if end.returncode not in (0, -signal.SIGKILL):
            self._note(f"While pausing, {restarts.describe(spec.process, end)}")
        return replace(spec, first_line=first_line)

    def _end(self, learner: Child, *, at_once: bool) -> None:
        if self._ending is not learner:
            self._ending = learner
            learner.ask_to_end(PAUSE_LINE.encode())
            self._killer = asyncio.get_running_loop().call_later(self._limit_seconds, learner.kill)
        if at_once:
            learner.kill()


class RunBudget:
    """Sees every event of the learner. ``start`` counts from the first round of this node's run."""

    def __init__(self, first_line: bytes) -> None:
        """``first_line`` is ``LearnerStart`` as JSON."""
        self._first_line = first_line
        self._first_round: int | None = None
        self._first_tokens: int | None = None
        self._tokens: deque[tuple[int, int]] = deque(maxlen=ROUNDS_REMEMBERED)  # in total after each round
        self._kept_round = self._kept_tokens = 0

    def saw(self, event: Event) -> None:
        match event:
            case LearnerReady() if self._first_round is None:
                self._first_round = self._kept_round = event.round
            case RoundDone():
                if self._first_tokens is None:
                    self._first_tokens = self._kept_tokens = event.tokens_generated_total - event.tokens_generated
                self._tokens.append((event.round, event.tokens_generated_total))
            case CheckpointSaved():
                self._kept_round = max(self._kept_round, event.round)
                known = [total for number, total in self._tokens if number <= event.round]
                self._kept_tokens = max(self._kept_tokens, *known, 0)
            case Stopped() if event.checkpoint is not None:
                self._kept_round, self._kept_tokens = event.round, event.tokens_generated_total
            case _:
                pass

    def start(self) -> bytes:
        """Returns the first line with what the checkpoint, from which the next learner continues, has left to do: at
        least one round and one token."""
        start = msgspec.json.decode(self._first_line, type=LearnerStart)
        rounds, tokens = start.config.get("rounds", 0), start.config.get("tokens", 0)
        left = dict(start.config)
        if rounds and self._first_round is not None:
            left["rounds"] = max(1, rounds - (self._kept_round - self._first_round))
        if tokens and self._first_tokens is not None:
            left["tokens"] = max(1, tokens - (self._kept_tokens - self._first_tokens))
        return msgspec.json.encode(LearnerStart(start.home, left)) if rounds or tokens else self._first_line
