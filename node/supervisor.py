"""Keeps one node up: starts the swarm process and the learner, restarts what dies, says why, and ends both in order.

    starting → training ⇄ recovering → stopping → ended

It imports no torch and waits for nothing but events, so it answers and stops at any time. Its first stop request lets
the learner finish its step and checkpoint, then the swarm process say goodbye; the second one ends everything at once.
If the supervisor itself is killed, its children read the end of their input and end by themselves.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from node import restarts
from node.api.access import load_or_create_token
from node.api.app import served
from node.api.event_feed import EventFeed
from node.api.status import ChildStatus, NodeStatus, Note, PeersAnswer, State, peer_view
from node.children import Child, ChildSpec
from node.config import Config
from node.events import (
    STOP_LINE,
    CheckpointSaved,
    Event,
    Fault,
    Loading,
    Ready,
    RoundDone,
    Stopped,
    decode_event,
    encode_event,
    kind_of,
)
from node.exit_codes import ExitCode
from node.home import Home
from node.outcome import Outcome
from node.restarts import End, GiveUp
from node.rolling_log import RollingLog
from node.version import VERSION
from protocol.errors import TransportError
from swarm.api import SwarmStatus
from swarm.client import SwarmClient

LOG_BYTES = 16 << 20  # of each process's log, the older half included
METRICS_BYTES = 256 << 20
POLL_SECONDS = 1.0  # between two looks at the swarm process
POLL_TIMEOUT_SECONDS = 5.0
LEARNER_STOP_SECONDS = 300.0  # to finish a step and checkpoint; a large model's step takes minutes
SWARM_STOP_SECONDS = 10.0  # to say goodbye
NOTES_KEPT = 20


class Observer(Protocol):
    """Shows a node to whoever started it. Must not block, and raises nothing."""

    def on_event(self, line: bytes, event: Event) -> None:
        """The learner said something; ``line`` is its JSON."""

    def on_note(self, text: str) -> None:
        """The supervisor has something to say, in one or more lines that are safe to print."""

    def on_tick(self, status: NodeStatus, peers: PeersAnswer) -> None:
        """About once a second."""


class _Kept:
    """A child process over all its lives."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.child: Child | None = None
        self.ends: list[End] = []  # unasked ones
        self.ready = False  # in its present life

    def status(self) -> ChildStatus:
        last_end = restarts.describe(self.spec.process, self.ends[-1]) if self.ends else None
        return ChildStatus(self.child.pid if self.child else None, len(self.ends), last_end)


class Supervisor:
    """One node, from start to end. Not for reuse."""

    def __init__(
        self,
        home: Home,
        config: Config,
        *,
        peer: str,
        swarm: ChildSpec,
        learner: ChildSpec,
        observer: Observer,
    ) -> None:
        self._home, self._config, self._observer = home, config, observer
        self._peer = peer
        self._swarm, self._learner = _Kept(swarm), _Kept(learner)
        self._metrics = RollingLog(home.metrics, max_bytes=METRICS_BYTES)
        self._newest: dict[type[Any], Any] = {}  # the learner's newest event of each kind
        self._notes: list[str] = []
        self._began = time.monotonic()
        self._swarm_status: SwarmStatus | None = None
        self._peers = PeersAnswer(())
        self._feed = EventFeed()
        self._outcome: Outcome | None = None  # set once; from then on the node is stopping
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self) -> Outcome:
        """Returns once nothing of the node runs any more. Raises ``StorageError``, ``UnreachableError`` or
        ``IdentityError`` if it cannot serve its API."""
        port = self._config.api.port
        token = load_or_create_token(self._home.api_token) if port else ""
        async with served(self, self._feed, self._home.supervisor_socket, port=port, token=token):
            learner = asyncio.create_task(self._keep(self._learner, self._on_learner_line))
            swarm = asyncio.create_task(self._keep(self._swarm, self._on_swarm_line))
            watch = asyncio.create_task(self._watch())
            tasks: set[asyncio.Task[None]] = {learner, swarm, watch}
            stop = asyncio.create_task(self._stop.wait())
            try:
                await asyncio.wait({*tasks, stop}, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done():
                        task.result()  # a bug of ours ends the node and is shown
                await self._end(self._learner, learner, LEARNER_STOP_SECONDS)
                await self._end(self._swarm, swarm, SWARM_STOP_SECONDS)
            finally:
                stop.cancel()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, stop, return_exceptions=True)
        assert self._outcome is not None
        return Outcome(ExitCode.INTERRUPTED, "told twice to stop") if self._stop_now.is_set() else self._outcome

    def request_stop(self, because: str) -> None:
        """The first request ends the node in order, the second one at once."""
        if self._stop.is_set():
            self._note("Ending now.")
            self._stop_now.set()
            return
        self._note(f"Stopping ({because}): the learner finishes its step and checkpoints. Once more ends it now.")
        self._finish(Outcome(ExitCode.DONE, because))

    def status(self) -> NodeStatus:
        return NodeStatus(
            version=VERSION,
            pid=os.getpid(),
            home=str(self._home.path),
            name=self._config.name,
            peer=self._peer,
            model=self._config.policy.model,
            state=self._state(),
            uptime_seconds=time.monotonic() - self._began,
            swarm_process=self._swarm.status(),
            learner_process=self._learner.status(),
            swarm=self._swarm_status,
            loading=self._newest.get(Loading),
            ready=self._newest.get(Ready),
            round=self._newest.get(RoundDone),
            checkpoint=self._newest.get(CheckpointSaved),
            fault=self._newest.get(Fault),
            notes=tuple(self._notes),
        )

    def peers(self) -> PeersAnswer:
        return self._peers

    def _state(self) -> State:
        if self._stop.is_set():
            return State.STOPPING
        if self._learner.ready:
            return State.TRAINING
        return State.RECOVERING if self._learner.ends else State.STARTING

    def _finish(self, outcome: Outcome) -> None:
        if self._outcome is None:
            self._outcome = outcome
            self._stop.set()

    async def _keep(self, kept: _Kept, on_line: Callable[[bytes], bool]) -> None:
        """Runs lives of a child until the node stops, the child ends on purpose, or another start is of no use."""
        log = RollingLog(self._home.log(kept.spec.process), max_bytes=LOG_BYTES)
        while not self._stop.is_set():
            kept.child, kept.ready = Child(kept.spec, log, on_line), False
            end = await kept.child.live()
            kept.ready = False
            if self._stop.is_set():
                self._judge_last_end(kept, end)
                return
            if kept is self._learner and end.returncode == 0:
                stopped = self._newest.get(Stopped)
                self._finish(Outcome(ExitCode.DONE, stopped.because if stopped else "the learner ended by itself"))
                return
            kept.ends.append(end)
            decision = restarts.decide(kept.spec.process, kept.ends)
            if isinstance(decision, GiveUp):
                self._finish(Outcome(decision.exit_code, decision.because))
                return
            said = restarts.describe(kept.spec.process, end)
            self._note(f"{said}\nStarting it again in {decision.after_seconds:g} s.")
            await asyncio.wait([stopping := asyncio.create_task(self._stop.wait())], timeout=decision.after_seconds)
            stopping.cancel()

    def _judge_last_end(self, kept: _Kept, end: End) -> None:
        """A child that was to end in order and did not: the node did not end well either."""
        if end.returncode != 0 and not self._stop_now.is_set():
            said = restarts.describe(kept.spec.process, end)
            self._note(f"While stopping, {said}")
            if self._outcome is not None and self._outcome.exit_code is ExitCode.DONE:
                self._outcome = Outcome(ExitCode.FAULT, f"while stopping, {said}")

    async def _end(self, kept: _Kept, life: asyncio.Task[None], limit_seconds: float) -> None:
        if kept.child is not None and not life.done():
            if kept is self._learner:
                kept.child.tell(STOP_LINE.encode())
            kept.child.close_input()
            at_once = asyncio.create_task(self._stop_now.wait())
            await asyncio.wait({life, at_once}, timeout=limit_seconds, return_when=asyncio.FIRST_COMPLETED)
            at_once.cancel()
            if not life.done():
                if not self._stop_now.is_set():
                    self._note(f"The {kept.spec.process} process did not end within {limit_seconds:.0f} s: killing it.")
                kept.child.kill()
        await life

    async def _watch(self) -> None:
        """Looks at the swarm process every second, for as long as the node is up."""
        with SwarmClient(self._home.swarm_socket, timeout_seconds=POLL_TIMEOUT_SECONDS) as client:
            while True:
                try:
                    self._swarm_status = await asyncio.to_thread(client.status)
                    seen = await asyncio.to_thread(client.peers)
                    self._peers = PeersAnswer(tuple(peer_view(peer) for peer in seen))
                except TransportError:  # not up yet, or being started again: its own end is told by _keep
                    self._swarm_status = None
                status = self.status()
                self._observer.on_tick(status, self.peers())
                if self._feed.readers:
                    self._feed.publish("status", msgspec.json.encode(status))
                await asyncio.sleep(POLL_SECONDS)

    def _on_learner_line(self, line: bytes) -> bool:
        try:
            event = decode_event(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False  # something that a library printed: it goes to the log
        self._newest[type(event)] = event
        self._learner.ready |= isinstance(event, Ready)
        if isinstance(event, RoundDone) and self._learner.child is not None:
            self._learner.child.useful = True
        failed_before = self._metrics.failure
        self._metrics.append(line + b"\n")
        if self._metrics.failure and self._metrics.failure != failed_before:
            self._note(self._metrics.failure)
        self._observer.on_event(line, event)
        self._feed.publish(kind_of(event), encode_event(event))
        return True

    def _on_swarm_line(self, line: bytes) -> bool:
        try:
            event = msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        if event.get("event") == "ready" and self._swarm.child is not None:
            self._swarm.child.useful = self._swarm.ready = True
        return False  # its events are part of its log

    def _note(self, text: str) -> None:
        self._notes = [*self._notes, text][-NOTES_KEPT:]
        self._observer.on_note(text)
        self._feed.publish("note", msgspec.json.encode(Note(time.time(), text)))
