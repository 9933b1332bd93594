"""Keeps one node up: starts the swarm process and the learner, restarts a child that dies, and ends both in order.

    starting → training ⇄ recovering, paused → stopping → ended

It does not import torch and never blocks, so it answers and stops at any time. After the first stop request the learner
finishes its step and checkpoints, then the swarm process says goodbye to its peers; a second request ends everything at
once. While the node pauses the learner is not there, and the swarm process stays. If the supervisor itself is killed,
its children read the end of their input and end by themselves.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from node.api.access import load_or_create_token
from node.api.answers import (
    damaged_line,
    escaped_event,
    escaped_swarm_status,
    lost_line,
    not_saved_line,
    out_of_memory_line,
    peers_answer,
    waiting_for,
)
from node.api.event_feed import EventFeed
from node.api.join import join_of
from node.api.losses import MAX_LOSSES
from node.api.presence import Presence
from node.api.record import RunRecord, recorded_run
from node.api.server import served
from node.api.types import ChildStatus, NodeState, NodeStatus, Note, Paused, PeersAnswer, PeerView, SamplesNews
from node.compute_environment import thread_limit
from node.configuration import Config
from node.events import (
    Averaged,
    CheckpointSaved,
    CheckpointsDamaged,
    DeviceUsage,
    Evaluated,
    Event,
    Fault,
    LearnerReady,
    Loading,
    NotSaved,
    OutOfMemory,
    PhaseBegan,
    RoundDone,
    Samples,
    Stopped,
    Usage,
    decode_event,
    encode_event,
    kind_of,
)
from node.home import Home
from node.printable import printable
from node.supervision import restarts
from node.supervision.children import Child, ChildSpec
from node.supervision.clock_watch import ClockWatch
from node.supervision.device_usage import device_usage
from node.supervision.memory_cap import MemoryCap
from node.supervision.memory_kills import MemoryKills
from node.supervision.outcome import RunOutcome
from node.supervision.pausing.pauses import LearnerPauses
from node.supervision.pausing.run_control import READING_SECONDS, RunControl
from node.supervision.process_memory import resident_bytes, resident_bytes_of_session
from node.supervision.restarts import ChildEnd, GiveUp
from node.supervision.rolling_log import RollingLog
from node.supervision.run_budget import RunBudget
from node.trackers.sink import TrackerSink
from node.version import VERSION
from protocol.errors import TransportError
from swarm.api import SwarmStatus
from swarm.client import SwarmClient
from swarm.exit_codes import ExitCode

LOG_BYTES = 16 << 20  # of each process's log, the older half included
METRICS_BYTES = 256 << 20
POLL_SECONDS = 1.0  # between two looks at the swarm process
POLL_TIMEOUT_SECONDS = 5.0
LEARNER_STOP_SECONDS = 300.0  # to finish a step and checkpoint; a large model's step takes minutes
SWARM_STOP_SECONDS = 10.0  # to say goodbye to peers
NOTES_KEPT = 20
REFUSAL_CHARACTERS = 2000
DEVICE_SECONDS = 10.0  # between two looks at the GPU
UNSAVED_NOTE_SECONDS = 300.0  # between two notes that no checkpoint can be written
FRESH_HEARTBEAT_SECONDS = 60.0  # an older one says nothing about a peer's clock now
USAGE_SECONDS = 5.0  # between two reports of memory and traffic
FIRST_USAGE_SECONDS = 1.0  # until both processes have started


class Observer(Protocol):
    """Shows a node to the user who started it. Must not block or raise."""

    def on_event(self, line: bytes, event: Event) -> None:
        """Called for each event of the learner; ``line`` is its JSON."""

    def on_note(self, text: str) -> None:
        """Called for each message of the supervisor: one or more lines that are safe to print."""

    def on_tick(self, status: NodeStatus, peers: PeersAnswer) -> None:
        """Called about once a second."""


class _KeptChild:
    """A child process over all its restarts."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.child: Child | None = None
        self.ends: list[ChildEnd] = []  # those that were not requested
        self.ready = False  # in its present run

    def status(self) -> ChildStatus:
        last_end = restarts.describe(self.spec.process, self.ends[-1]) if self.ends else None
        return ChildStatus(self.child.pid if self.child else None, len(self.ends), last_end)


class Supervisor:
    """One node, from start to end; ``run`` may be called once."""

    def __init__(
        self,
        home: Home,
        config: Config,
        *,
        peer: str,
        swarm: ChildSpec,
        learner: ChildSpec,
        observer: Observer,
        trackers: Sequence[ChildSpec] = (),
    ) -> None:
        threads = config.machine.threads(os.cpu_count() or 1)
        learner = replace(learner, environment=tuple(thread_limit(threads, os.environ).items()))
        self._home, self._config, self._observer = home, config, observer
        self._peer = peer
        self._swarm, self._learner = _KeptChild(swarm), _KeptChild(learner)
        self._trackers = TrackerSink(home, trackers, self._note)
        self._metrics = RollingLog(home.metrics, max_bytes=METRICS_BYTES)
        self._memory_kills = MemoryKills(home.fitted)
        self._clock_watch = ClockWatch()
        self._memory_cap = MemoryCap(config.machine.max_memory_bytes)
        self._newest: dict[type[Any], Any] = {}  # the learner's newest event of each kind
        self._averaged: Averaged | None = None  # the newest one with a partner
        self._notes: list[str] = []
        self._began = time.monotonic()
        self._unsaved_noted_at = -math.inf
        self._budget = RunBudget(learner.first_line)
        self._control = RunControl(home.pause, config.machine)
        self._pauses = LearnerPauses(self._control.now(), LEARNER_STOP_SECONDS, self._note, time.time)
        self._swarm_status: SwarmStatus | None = None
        self._peers = PeersAnswer(())
        self._feed = EventFeed()
        self.record = RunRecord(settings=config.model_dump(mode="json"))
        self._presence = Presence()
        self._usage: Usage | None = None
        self._device: DeviceUsage | None = None
        self._outcome: RunOutcome | None = None  # set once; from then on the node is stopping
        self._page: str | None = None
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self) -> RunOutcome:
        """Runs the node and returns when all its processes have ended. Raises ``StorageError``, ``UnreachableError`` or
        ``IdentityError`` if it cannot serve its API."""
        ports = self._config.api.ports
        token = load_or_create_token(self._home.api_token) if ports else ""
        async with served(self, self._feed, self._home.supervisor_socket, ports=ports, token=token) as port:
            if port is not None:
                self._page = f"http://127.0.0.1:{port}/"
                self._note(f"Web page: {self._page}")
            self._trackers.start()
            learner = asyncio.create_task(self._keep_running(self._learner, self._on_learner_line))
            swarm = asyncio.create_task(self._keep_running(self._swarm, self._on_swarm_line))
            watch = asyncio.create_task(self._watch())
            remember = asyncio.create_task(self._keep_record(time.time()))
            device = asyncio.create_task(self._watch_device())
            decide = asyncio.create_task(self._decide())
            tasks: set[asyncio.Task[None]] = {learner, swarm, watch, remember, device, decide}
            stop = asyncio.create_task(self._stop.wait())
            try:
                await asyncio.wait({*tasks, stop}, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done():
                        task.result()  # a bug of ours ends the node and is raised
                await self._end(self._learner, learner, LEARNER_STOP_SECONDS)
                await self._end(self._swarm, swarm, SWARM_STOP_SECONDS)
            finally:
                stop.cancel()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, stop, return_exceptions=True)
                await self._trackers.close(self._stop_now)
        assert self._outcome is not None
        return RunOutcome(ExitCode.INTERRUPTED, "asked twice to stop") if self._stop_now.is_set() else self._outcome

    def request_stop(self, because: str) -> None:
        """The first request ends the node in order, the second at once."""
        if self._stop.is_set():
            self._note("Ending now.")
            self._stop_now.set()
            return
        self._note(
            f"Stopping ({because}): the learner finishes its step and checkpoints. A second request ends it now."
        )
        self._finish(RunOutcome(ExitCode.DONE, because))

    def pause(self, for_seconds: float | None, *, at_once: bool) -> Paused | None:
        """The owner asks for a pause, for so long or until ``resume``; ``at_once`` drops the step that is under way."""
        self._pauses.follow(self._control.pause(for_seconds), self._learner.child, at_once=at_once)
        return self._ordered()

    def resume(self, for_seconds: float | None) -> Paused | None:
        """Ends the owner's pause; with ``for_seconds`` trains for so long, whatever is against it."""
        self._pauses.follow(self._control.resume(for_seconds), self._learner.child)
        return self._ordered()

    def _ordered(self) -> Paused | None:
        if self._control.failure is not None:
            self._note(self._control.failure)
        return self._pauses.paused

    def status(self) -> NodeStatus:
        state, loading, done = self._state(), self._newest.get(Loading), self._newest.get(RoundDone)
        return NodeStatus(
            version=VERSION,
            pid=os.getpid(),
            home=str(self._home.path),
            name=self._config.name,
            peer=self._peer,
            model=self._config.policy.model,
            state=state,
            uptime_seconds=time.monotonic() - self._began,
            swarm_process=self._swarm.status(),
            learner_process=self._learner.status(),
            swarm=self._swarm_status,
            loading=loading,
            ready=self._newest.get(LearnerReady),
            round=done,
            checkpoint=self._newest.get(CheckpointSaved),
            evaluated=self._newest.get(Evaluated),
            not_saved=self._newest.get(NotSaved),
            damaged=self._newest.get(CheckpointsDamaged),
            clock=self._clock_watch.told.message if self._clock_watch.told is not None else None,
            fault=self._newest.get(Fault),
            notes=tuple(self._notes),
            page=self._page,
            offered=self._newest.get(Averaged),
            averaged=self._averaged,
            usage=self._usage,
            gained=self.record.changes.gains().sentence,
            losses=self.record.changes.losses[:MAX_LOSSES],
            join=join_of(self._swarm_status) if self._swarm_status is not None else None,
            waiting_for=self._pauses.doing(self._learner.child)
            or waiting_for(state, loading, done, self._newest.get(PhaseBegan), now_seconds=time.time()),
            paused=self._pauses.paused,
        )

    def peers(self) -> PeersAnswer:
        return self._peers

    def _state(self) -> NodeState:
        if self._stop.is_set():
            return NodeState.STOPPING
        if self._pauses.paused is not None:
            return NodeState.PAUSED
        if self._learner.ready:
            return NodeState.TRAINING
        return NodeState.RECOVERING if self._learner.ends else NodeState.STARTING

    def _finish(self, outcome: RunOutcome) -> None:
        if self._outcome is None:
            self._outcome = outcome
            self._stop.set()

    async def _keep_running(self, kept: _KeptChild, on_line: Callable[[bytes], bool]) -> None:
        """Runs and restarts a child until the node stops, the child ends on purpose, or restarting is given up."""
        log = RollingLog(self._home.log(kept.spec.process), max_bytes=LOG_BYTES)
        while not self._stop.is_set():
            if kept is self._learner:
                await self._pauses.until_over(self._stop)
                if self._stop.is_set():
                    return
                self._newest.pop(Stopped, None)
                self._memory_kills.learner_starts()
            kept.child, kept.ready = Child(kept.spec, log, on_line), False
            end = await kept.child.live()
            was_ready, kept.ready = kept.ready, False
            if self._stop.is_set():
                self._judge_last_end(kept, end)
                return
            stopped = self._newest.get(Stopped)
            lost = stopped.lost if stopped is not None and end.returncode == ExitCode.NOT_SAVED else None
            if kept is self._learner and self._pauses.was_for(kept.child, stopped):
                if lost is not None:
                    self._note(lost_line(lost))
                kept.spec = self._pauses.ended(end, kept.spec, self._budget.start())
                kept.child = None
                continue
            if kept is self._learner and lost is not None:
                self._finish(RunOutcome(ExitCode.NOT_SAVED, lost_line(lost)))
                return
            if kept is self._learner and end.returncode == 0 and not end.not_started:
                self._finish(RunOutcome(ExitCode.DONE, stopped.because if stopped else "the learner ended by itself"))
                return
            kept.ends.append(end)
            if kept is self._learner:
                self._judge_memory(end, was_ready=was_ready)
            decision = restarts.decide(kept.spec.process, kept.ends)
            if isinstance(decision, GiveUp):
                self._finish(RunOutcome(decision.exit_code, decision.because))
                return
            description = restarts.describe(kept.spec.process, end)
            self._note(f"{description}\nStarting it again in {decision.after_seconds:g} s.")
            await asyncio.wait([stopping := asyncio.create_task(self._stop.wait())], timeout=decision.after_seconds)
            stopping.cancel()

    def _judge_memory(self, end: ChildEnd, *, was_ready: bool) -> None:
        """Lets the next learner begin with less if the system killed this one for its memory."""
        resident = self._usage.learner_bytes if self._usage is not None else None
        note = self._memory_kills.learner_ended(
            end.returncode, resident, self._newest.get(LearnerReady) if was_ready else None
        )
        if note is not None:
            self._note(note)

    def _judge_last_end(self, kept: _KeptChild, end: ChildEnd) -> None:
        """Turns the outcome into a fault if a child that was asked to end failed instead."""
        stopped = self._newest.get(Stopped)
        if end.returncode == ExitCode.NOT_SAVED and stopped is not None and stopped.lost is not None:
            self._outcome = RunOutcome(ExitCode.NOT_SAVED, lost_line(stopped.lost))
        reported = self._outcome is not None and self._outcome.exit_code == end.returncode
        if end.returncode != 0 and not reported and not self._stop_now.is_set():
            description = restarts.describe(kept.spec.process, end)
            self._note(f"While stopping, {description}")
            if self._outcome is not None and self._outcome.exit_code is ExitCode.DONE:
                self._outcome = RunOutcome(ExitCode.FAULT, f"while stopping, {description}")

    async def _end(self, kept: _KeptChild, life: asyncio.Task[None], limit_seconds: float) -> None:
        if kept.child is not None and not life.done():
            kept.child.ask_to_end()
            at_once = asyncio.create_task(self._stop_now.wait())
            await asyncio.wait({life, at_once}, timeout=limit_seconds, return_when=asyncio.FIRST_COMPLETED)
            at_once.cancel()
            if not life.done():
                if not self._stop_now.is_set():
                    self._note(f"The {kept.spec.process} process did not end within {limit_seconds:.0f} s: killing it.")
                kept.child.kill()
        await life

    async def _watch(self) -> None:
        """Polls the swarm process every second while the node is up."""
        with SwarmClient(self._home.swarm_socket, timeout_seconds=POLL_TIMEOUT_SECONDS) as client:
            while True:
                try:
                    self._swarm_status = escaped_swarm_status(await asyncio.to_thread(client.status))
                    rests = self._pauses.paused is not None
                    if self._swarm_status.paused != rests:
                        await asyncio.to_thread(client.set_paused, rests)
                    seen = await asyncio.to_thread(client.peers)
                    outcomes = [self.record.rollouts.outcomes_of(peer.peer) for peer in seen]
                    self._peers = await asyncio.to_thread(peers_answer, seen, outcomes)
                    self._look_for_peers()
                except TransportError:  # not up yet or restarting: _keep_running reports its end
                    self._swarm_status = None
                self._watch_clock()
                status = self.status()
                self._observer.on_tick(status, self.peers())
                if self._feed.readers:
                    self._feed.publish("status", msgspec.json.encode(status))
                await asyncio.sleep(POLL_SECONDS)

    def _watch_clock(self) -> None:
        peers = [peer for peer in self._peers.peers if peer.connected and _is_fresh(peer)]
        offsets = [peer.clock_offset_seconds for peer in peers if peer.clock_offset_seconds is not None]
        if self._clock_watch.look(offsets):
            told = self._clock_watch.told
            self._note(f"CLOCK: {told.message}. To do: {told.remedy}." if told else "The clocks agree again.")

    async def _decide(self) -> None:
        """Decides every second whether the node trains."""
        looked_at = -READING_SECONDS
        while True:
            if self._control.watches and time.monotonic() - looked_at >= READING_SECONDS:
                looked_at = time.monotonic()
                pids = [kept.child.pid for kept in (self._learner, self._swarm) if kept.child is not None]
                sessions = [pid for pid in pids if pid is not None]
                for what in await asyncio.to_thread(self._control.look, sessions):
                    self._note(f"machine.pause_when: this system does not tell {what}.")
            self._pauses.follow(self._control.now(), self._learner.child)
            await asyncio.sleep(POLL_SECONDS)

    async def _keep_record(self, began_seconds: float) -> None:
        """Restores what earlier runs recorded, then reports memory and traffic while the node is up."""
        earlier = await asyncio.to_thread(recorded_run, self._home.metrics, before_seconds=began_seconds)
        self.record.restore(*earlier)
        await asyncio.sleep(FIRST_USAGE_SECONDS)
        while True:
            learner, swarm = (kept.child.pid if kept.child else None for kept in (self._learner, self._swarm))
            memory = await asyncio.to_thread(_resident, learner, swarm)
            traffic = self._swarm_status
            self._usage = Usage(
                time_seconds=time.time(),
                supervisor_bytes=memory[0],
                learner_bytes=memory[1],
                swarm_bytes=memory[2],
                sent_bytes_total=traffic.sent_bytes if traffic is not None else None,
                received_bytes_total=traffic.received_bytes if traffic is not None else None,
                device=self._device if learner is not None else None,
            )
            exceeded = self._memory_cap.exceeded_by(self._usage)
            if exceeded is not None and self._learner.child is not None:
                self._memory_kills.exceeds(exceeded)
                self._learner.child.kill()
            line = msgspec.json.encode(self._usage)
            self.record.add(self._usage)
            self._write_metrics(line)
            self._feed.publish("usage", line)
            await asyncio.sleep(USAGE_SECONDS)

    def _look_for_peers(self) -> None:
        """Records which peers came and which left."""
        done, ready = self._newest.get(RoundDone), self._newest.get(LearnerReady)
        number = done.round if done is not None else ready.round if ready is not None else 0
        changed = self._presence.look(time.time(), number, self._peers.peers)
        self.record.changes.name_peers(self._presence.renamed)
        if changed is None:
            return
        line = msgspec.json.encode(changed)
        self.record.add(changed)
        self._write_metrics(line)
        self._feed.publish("peers", line)

    async def _watch_device(self) -> None:
        """Asks for the figures of the GPU now and then, once the learner says that it uses one."""
        while True:
            ready = self._newest.get(LearnerReady)
            self._device = await device_usage(ready.device) if ready is not None else None
            await asyncio.sleep(DEVICE_SECONDS)

    def _write_metrics(self, line: bytes) -> None:
        failed_before = self._metrics.failure
        self._metrics.append(line + b"\n")
        if self._metrics.failure and self._metrics.failure != failed_before:
            self._note(self._metrics.failure)

    def _on_learner_line(self, line: bytes) -> bool:
        try:
            event = escaped_event(decode_event(line))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False  # a library printed it: it is logged
        if isinstance(event, Samples):  # to be looked at, never recorded
            self.record.add(event)
            self._feed.publish("samples", msgspec.json.encode(SamplesNews(event.time_seconds, event.round)))
            return True
        self._newest[type(event)] = event
        if isinstance(event, Averaged) and event.partner is not None:
            self._averaged = event
        if isinstance(event, Evaluated):
            self._newest.pop(PhaseBegan, None)  # the evaluation that it announced is over
        if isinstance(event, CheckpointsDamaged):
            self._note(damaged_line(event))
        self._tell_unsaved(event)
        self._learner.ready |= isinstance(event, LearnerReady)
        if isinstance(event, RoundDone) and self._learner.child is not None:
            self._learner.child.useful = True
        if isinstance(event, OutOfMemory):
            self._note(out_of_memory_line(event))
        self._budget.saw(event)
        for loss in self.record.add(event):
            self._note(loss.sentence)
        self._write_metrics(line)
        self._trackers.add(event)
        self._observer.on_event(line, event)
        self._feed.publish(kind_of(event), encode_event(event))
        return True

    def _tell_unsaved(self, event: Event) -> None:
        """Notes that no checkpoint can be written, again every ``UNSAVED_NOTE_SECONDS``, and that one is again."""
        due = time.monotonic() - self._unsaved_noted_at >= UNSAVED_NOTE_SECONDS
        if isinstance(event, NotSaved) and (due or event.ends_in_seconds is not None):
            self._unsaved_noted_at = time.monotonic()
            self._note(not_saved_line(event))
        if isinstance(event, CheckpointSaved) and self._newest.pop(NotSaved, None) is not None:
            self._unsaved_noted_at = -math.inf
            self._note(f"Saved again: the checkpoint of round {event.round} is whole, at {event.path}")

    def _on_swarm_line(self, line: bytes) -> bool:
        try:
            event = msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        if event.get("event") == "ready" and self._swarm.child is not None:
            self._swarm.child.useful = self._swarm.ready = True
        if event.get("event") == "refused":  # by the private cluster: a restart would end the same way
            reason = printable(f"not let in ({event.get('reason')}): {event.get('message')}", REFUSAL_CHARACTERS)
            self._finish(RunOutcome(ExitCode.REFUSED, reason))
        return False  # its events are part of its log

    def _note(self, text: str) -> None:
        self._notes = [*self._notes, text][-NOTES_KEPT:]
        self._observer.on_note(text)
        self._feed.publish("note", msgspec.json.encode(Note(time.time(), text)))


def _is_fresh(peer: PeerView) -> bool:
    return peer.heartbeat_age_seconds is None or peer.heartbeat_age_seconds < FRESH_HEARTBEAT_SECONDS


def _resident(learner: int | None, swarm: int | None) -> tuple[int | None, int | None, int | None]:
    """Returns resident bytes of the supervisor, of the learner with its workers, and of the swarm process."""
    of_children = [resident_bytes_of_session(pid) if pid is not None else None for pid in (learner, swarm)]
    return resident_bytes(os.getpid()), of_children[0], of_children[1]
