"""Keeps one node up: starts the swarm process and the learner, restarts a child that dies, and ends both in order.

    starting → training ⇄ recovering, paused → stopping → ended

It does not import torch and never blocks, so it answers and stops at any time. After the first stop request the learner
finishes its step and checkpoints, then the swarm process says goodbye to its peers; a second request that a person has
typed ends everything at once. While the node pauses the learner is not there, and the swarm process stays. If the
supervisor itself is killed, its children read the end of their input and end by themselves."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from node import events
from node.api.access import load_or_create_token
from node.api.answers import escaped_event, lost_line, waiting_for
from node.api.join import join_of
from node.api.losses import MAX_LOSSES
from node.api.own_port import ports_to_try
from node.api.record import RunRecord, recorded_run
from node.api.server import served
from node.api.types import NodeState, NodeStatus, Paused, PeersAnswer
from node.api.withdrawals import with_withdrawals
from node.compute_environment import thread_limit
from node.configuration import Config
from node.home import Home, home_at
from node.policy.model_name import model_name
from node.printable import printable
from node.supervision import restarts
from node.supervision.children import Child, ChildSpec, KeptChild
from node.supervision.farewell import farewell
from node.supervision.memory_kills import MemoryCap, MemoryKills
from node.supervision.outcome import RunOutcome
from node.supervision.outlook import Outlook
from node.supervision.pausing.pauses import LearnerPauses, RunBudget
from node.supervision.pausing.run_control import READING_SECONDS, RunControl
from node.supervision.reporting import Observer, Reporting
from node.supervision.restarts import ChildEnd
from node.supervision.rolling_log import RollingLog
from node.supervision.trying import Trying, room_beside_learner, try_spec
from node.supervision.watching.learner_news import LearnerNews
from node.supervision.watching.swarm_watch import SwarmWatch
from node.supervision.watching.usage_watch import UsageWatch
from node.trying.messages import TryRequest
from node.trying.tried import Tried
from node.version import VERSION
from protocol.errors import StorageError
from swarm.client import SwarmClient
from swarm.exit_codes import ExitCode
from swarm.kept_port import keep_port

LOG_BYTES = 16 << 20  # of each process's log, the older half included
POLL_SECONDS = 1.0  # between two looks at the swarm process
POLL_TIMEOUT_SECONDS = 5.0
LEARNER_STOP_SECONDS = 300.0  # to finish a step and checkpoint; a large model's step takes minutes
SWARM_STOP_SECONDS = 10.0  # to say goodbye to peers
REFUSAL_CHARACTERS = 2000
USAGE_SECONDS = 5.0  # between two reports of memory and traffic
FIRST_USAGE_SECONDS = 1.0  # until both processes have started


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
        self._home, self._config, self._peer = home, config, peer
        self._swarm, self._learner = KeptChild(swarm), KeptChild(learner)
        self._memory_kills = MemoryKills(home.fitted)
        self._memory_cap = MemoryCap(config.machine.max_memory_bytes)
        self.record = RunRecord(settings=config.model_dump(mode="json"))
        self._reporting = Reporting(home, self.record, observer, trackers)
        self._note = self._reporting.note
        self._news = LearnerNews(time.monotonic)
        self._outlook = Outlook(config.rounds, config.evaluation.every_rounds)
        self._swarm_watch = SwarmWatch()
        self._usage_watch = UsageWatch(time.time)
        self._began = time.monotonic()
        self._budget = RunBudget(learner.first_line)
        self._control = RunControl(home.pause, config.machine)
        self._pauses = LearnerPauses(self._control.now(), LEARNER_STOP_SECONDS, self._note, time.time)
        self._outcome: RunOutcome | None = None  # set once; from then on the node is stopping
        log = RollingLog(home.log("try"), max_bytes=LOG_BYTES)
        self._trying = Trying(try_spec(home, self.record.settings), log)
        self._page: str | None = None
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self) -> RunOutcome:
        """Runs the node and returns when all its processes have ended. Raises ``StorageError``, ``UnreachableError`` or
        ``IdentityError`` if it cannot serve its API."""
        ports = ports_to_try(self._config.api, self._home.api_port)
        token = load_or_create_token(self._home.api_token) if ports else ""
        async with served(self, self._reporting.feed, self._home.supervisor_socket, ports=ports, token=token) as port:
            if port is not None:
                self._page = f"http://127.0.0.1:{port}/"
                self._keep_port(port)
            self._reporting.trackers.start()
            learner = asyncio.create_task(self._keep_running(self._learner, self._on_learner_line))
            swarm = asyncio.create_task(self._keep_running(self._swarm, self._on_swarm_line))
            watch = asyncio.create_task(self._watch())
            remember = asyncio.create_task(self._keep_record(time.time()))
            device = asyncio.create_task(self._usage_watch.watch_device(lambda: self._news.device))
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
                await self._trying.close()
                await self._reporting.trackers.close(self._stop_now)
                self._home.swarm_socket.unlink(missing_ok=True)  # of a swarm process that was killed
        assert self._outcome is not None
        if self._stop_now.is_set():
            return RunOutcome(ExitCode.INTERRUPTED, f"asked twice to stop{self._lost_rounds()}")
        if self._outcome.exit_code is ExitCode.DONE:
            self._say_farewell()
        return self._outcome

    def _say_farewell(self) -> None:
        done, saved = self._news.newest(events.RoundDone), self._news.newest(events.CheckpointSaved)
        rounds = done.round if done is not None else 0
        home = None if self._home.path == home_at(None, os.environ).path else self._home.path
        for line in farewell(rounds, self.record.changes.gains(), saved.path if saved is not None else None, home):
            self._note(line)

    def _keep_port(self, port: int) -> None:
        """A port that was not set stays the data directory's own."""
        if self._config.api.port != "auto":
            return
        try:
            keep_port(self._home.api_port, port)
        except StorageError as failure:
            self._note(f"The next start may use another port for the web page: {failure}")

    def request_stop(self, because: str, *, typed: bool) -> None:
        """The first request ends the node in order. A further one ends it at once if a person has typed it: a terminal
        that closes, a logout and a service manager each send several signals, and mean one end."""
        if self._stop.is_set():
            if typed:
                self._note("Ending now.")
                self._stop_now.set()
            return
        self._note(f"Stopping ({because}): the learner finishes its step and checkpoints. Ctrl-C ends it now.")
        self._finish(RunOutcome(ExitCode.DONE, because))

    def _lost_rounds(self) -> str:
        """Returns which rounds no checkpoint holds, as the end of a sentence; nothing where there are none."""
        done, saved = self._news.newest(events.RoundDone), self._news.newest(events.CheckpointSaved)
        ready = self._news.newest(events.LearnerReady)
        kept = max(saved.round if saved is not None else 0, ready.round if ready is not None else 0)
        if done is None or done.round <= kept:
            return ""
        lost = f"round {done.round} is" if done.round == kept + 1 else f"rounds {kept + 1} to {done.round} are"
        return f": {lost} in no checkpoint, and done again at the next start"

    def pause(self, for_seconds: float | None, *, at_once: bool) -> Paused | None:
        """The owner asks for a pause, for so long or until ``resume``; ``at_once`` drops the step that is under way."""
        self._pauses.follow(self._control.pause(for_seconds), self._learner.child, at_once=at_once)
        return self._ordered()

    def resume(self, for_seconds: float | None) -> Paused | None:
        """Ends the owner's pause; with ``for_seconds`` trains for so long, whatever is against it."""
        self._pauses.follow(self._control.resume(for_seconds), self._learner.child)
        return self._ordered()

    async def try_model(self, request: TryRequest) -> Tried:
        """Returns how the base model and a checkpoint answer. Raises ``StarlingError`` where they cannot now."""
        return await self._trying.ask(request, self._why_not_try)

    async def _why_not_try(self) -> str | None:
        planned, usage = self._news.newest(events.Planned), self._usage_watch.newest
        runs = self._learner.pid is not None
        if self._stop.is_set():
            return "the node is stopping: starling try asks its model without it"
        if runs and (planned is None or usage is None):
            return "the learner has not said yet how much memory it takes: ask again when its first round has begun"
        others = 0 if usage is None else (usage.supervisor_bytes or 0) + (usage.swarm_bytes or 0)
        return await room_beside_learner(
            self._home,
            self._config,
            planned_bytes=planned.host_bytes if runs and planned is not None else 0,
            held_bytes=usage.learner_bytes or 0 if runs and usage is not None else 0,
            others_bytes=others,
        )

    def _ordered(self) -> Paused | None:
        if self._control.failure is not None:
            self._note(self._control.failure)
        return self._pauses.paused

    def state(self) -> NodeState:
        if self._stop.is_set():
            return NodeState.STOPPING
        if self._pauses.paused is not None:
            return NodeState.PAUSED
        if self._learner.ready:
            return NodeState.TRAINING
        return NodeState.RECOVERING if self._learner.ends else NodeState.STARTING

    def status(self) -> NodeStatus:
        news, changes, swarm = self._news, self.record.changes, self._swarm_watch.status
        loading, began = news.newest(events.Loading), news.newest(events.PhaseBegan)
        ready, done = news.newest(events.LearnerReady), news.newest(events.RoundDone)
        state = self.state()
        pausing = self._pauses.doing(self._learner.child)
        return NodeStatus(
            version=VERSION,
            pid=os.getpid(),
            home=str(self._home.path),
            name=self._config.name,
            peer=self._peer,
            model=ready.model_name if ready is not None else model_name(self._config.policy.model),
            state=state,
            uptime_seconds=time.monotonic() - self._began,
            swarm_process=self._swarm.status(),
            learner_process=self._learner.status(),
            swarm=swarm,
            loading=loading,
            ready=ready,
            round=done,
            checkpoint=news.newest(events.CheckpointSaved),
            evaluated=news.newest(events.Evaluated),
            not_saved=news.newest(events.NotSaved),
            damaged=news.newest(events.CheckpointsDamaged),
            clock=self._swarm_watch.clock,
            nothing_learnt=news.nothing_learnt,
            reward_falls=news.reward_falls,
            hangs=news.hangs if state is NodeState.TRAINING else None,
            engine=news.newest(events.EngineChanged),
            donors=news.newest(events.DonorsShared),
            stages=news.newest(events.StagesHeld),
            fault=news.newest(events.Fault),
            notes=self._reporting.notes,
            page=self._page,
            offered=news.newest(events.Averaged),
            averaged=news.averaged,
            usage=self._usage_watch.newest,
            gained=changes.gains().sentence,
            losses=changes.losses[:MAX_LOSSES],
            withdrawn=changes.withdrawn,
            join=join_of(swarm) if swarm is not None else None,
            waiting_for=pausing or waiting_for(state, loading, done, began, now_seconds=time.time()),
            paused=self._pauses.paused,
            trying=self._trying.doing,
        )

    def peers(self) -> PeersAnswer:
        return with_withdrawals(self._swarm_watch.peers, self.record.changes.withdrawn)

    def _finish(self, outcome: RunOutcome) -> None:
        if self._outcome is None:
            self._outcome = outcome
            self._stop.set()

    async def _keep_running(self, kept: KeptChild, on_line: Callable[[bytes], bool]) -> None:
        """Runs and restarts a child until the node stops, the child ends on purpose, or restarting is given up."""
        log = RollingLog(self._home.log(kept.spec.process), max_bytes=LOG_BYTES)
        while not self._stop.is_set():
            if kept is self._learner:
                await self._pauses.until_over(self._stop)
                if self._stop.is_set():
                    return
                self._trying.end("the learner starts, and needs the memory")
                self._news.learner_starts()
                self._memory_kills.learner_starts()
            kept.child, kept.ready = Child(kept.spec, log, on_line), False
            end = await kept.child.live()
            was_ready, kept.ready = kept.ready, False
            if self._stop.is_set():
                self._judge_last_end(kept, end)
                return
            stopped = self._news.newest(events.Stopped)
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
            if isinstance(decision, RunOutcome):
                self._finish(decision)
                return
            description = restarts.describe(kept.spec.process, end)
            self._note(f"{description}\nStarting it again in {decision.after_seconds:g} s.")
            await asyncio.wait([stopping := asyncio.create_task(self._stop.wait())], timeout=decision.after_seconds)
            stopping.cancel()

    def _judge_memory(self, end: ChildEnd, *, was_ready: bool) -> None:
        """Lets the next learner begin with less if the system killed this one for its memory."""
        ready = self._news.newest(events.LearnerReady) if was_ready else None
        note = self._memory_kills.learner_ended(end.returncode, self._usage_watch.learner_bytes, ready)
        if note is not None:
            self._note(note)

    def _judge_last_end(self, kept: KeptChild, end: ChildEnd) -> None:
        """Turns the outcome into a fault if a child that was asked to end failed instead."""
        stopped = self._news.newest(events.Stopped)
        if end.returncode == ExitCode.NOT_SAVED and stopped is not None and stopped.lost is not None:
            self._outcome = RunOutcome(ExitCode.NOT_SAVED, lost_line(stopped.lost))
        reported = self._outcome is not None and self._outcome.exit_code == end.returncode
        if end.returncode != 0 and not reported and not self._stop_now.is_set():
            description = restarts.describe(kept.spec.process, end)
            self._note(f"While stopping, {description}")
            if self._outcome is not None and self._outcome.exit_code is ExitCode.DONE:
                self._outcome = RunOutcome(ExitCode.FAULT, f"while stopping, {description}")

    async def _end(self, kept: KeptChild, life: asyncio.Task[None], limit_seconds: float) -> None:
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
                answered = await self._swarm_watch.look(
                    client,
                    is_paused=lambda: self._pauses.paused is not None,
                    outcomes_of=self.record.rollouts.outcomes_of,
                )
                if answered:
                    changed = self._swarm_watch.peers_changed(time.time(), self._news.rounds_done)
                    self.record.changes.name_peers(self._swarm_watch.renamed)
                    if changed is not None:
                        self._reporting.own_event(changed)
                if clock_note := self._swarm_watch.clock_note():
                    self._note(clock_note)
                self._reporting.tick(self.status(), self.peers())
                await asyncio.sleep(POLL_SECONDS)

    async def _decide(self) -> None:
        """Decides every second whether the node trains."""
        looked_at = -READING_SECONDS
        while True:
            if self._control.watches and time.monotonic() - looked_at >= READING_SECONDS:
                looked_at = time.monotonic()
                sessions = [kept.pid for kept in (self._learner, self._swarm) if kept.pid is not None]
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
            usage = await self._usage_watch.look(self._learner.pid, self._swarm.pid, lambda: self._swarm_watch.status)
            exceeded = self._memory_cap.exceeded_by(usage)
            if exceeded is not None and self._learner.child is not None:
                self._memory_kills.exceeds(exceeded)
                self._learner.child.kill()
            self._reporting.own_event(usage)
            await asyncio.sleep(USAGE_SECONDS)

    def _on_learner_line(self, line: bytes) -> bool:
        try:
            event = escaped_event(events.decode_event(line))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False  # a library printed it: it is logged
        if isinstance(event, events.Samples):
            self._reporting.samples(event)
            return True
        for note in self._news.saw(event):
            self._note(note)
        self._learner.ready |= isinstance(event, events.LearnerReady)
        if isinstance(event, events.RoundDone) and self._learner.child is not None:
            self._learner.child.useful = True
        self._budget.saw(event)
        self._reporting.learner_event(line, event)
        if isinstance(event, events.RoundDone):
            swarm = self._swarm_watch.status
            alone = swarm is not None and swarm.alone_because is not None
            for note in self._outlook.saw(event, self.record.changes.gains, alone=alone):
                self._note(note)
        return True

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
