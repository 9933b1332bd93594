"""One node of the demonstration: a ``starling up`` with a data directory of its own, and its figures."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from node.api.node_client import ask_status
from node.demo.plan import Effort
from node.events import Averaged, Event, LearnerReady, RoundDone, Stopped, decode_event
from node.home import Home
from node.printable import printable
from node.process_pipes import close_pipes
from protocol.errors import StarlingError, TransportError

KILL_AFTER_SECONDS = 10.0  # to stop in order; then as long again after SIGTERM, before SIGKILL
STARLING: tuple[str, ...] = (sys.executable, "-P", "-m", "node.cli.main")
MAX_LINE_BYTES = 1 << 22


class DemoError(StarlingError):
    """A node of the demonstration failed."""

    reason = "demo"


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """How one node of the demonstration is started."""

    model: str
    home: Path
    environment: dict[str, str]
    label: str  # its name in the demonstration
    flags: tuple[str, ...] = ()  # of ``starling up``


@dataclass(frozen=True, slots=True)
class Point:
    """One figure and its Unix time."""

    time_seconds: float
    value: float


@dataclass(slots=True)
class Tally:
    """The figures that a node has reported so far."""

    addresses: tuple[str, ...] = ()
    ready: bool = False
    connected: bool = False
    last: RoundDone | None = None
    stopped: Stopped | None = None
    rounds: int = 0
    own_groups: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    rewards: list[Point] = field(default_factory=list)  # of each round
    averagings: list[Averaged] = field(default_factory=list)  # that led to an outer step
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=3))

    def effort(self) -> Effort:
        last = self.last
        generated = self.stopped.tokens_generated_total if self.stopped else last.tokens_generated_total if last else 0
        return Effort(
            self.rounds,
            generated,
            self.own_groups,
            last.foreign_groups_used_total if last else 0,
            last.groups_offered_total if last else 0,
            self.sent_bytes,
            self.received_bytes,
        )


class DemoNode:
    """One node from its start to its end."""

    def __init__(self, plan: MemberPlan) -> None:
        self.plan = plan
        self.tally = Tally()
        self._process: asyncio.subprocess.Process | None = None
        self._changed = asyncio.Event()
        self._ended = False

    async def run(self) -> None:
        """Starts the node and returns after it has ended with exit code 0; otherwise raises ``DemoError`` with its last
        messages. When cancelled, it ends the node and all its processes."""
        # A session of its own, so that Ctrl-C in a terminal reaches only the demonstration, which stops its nodes in
        # order. The node's input stays open while we run, so that the node stops even if we are killed.
        self._process = process = await asyncio.create_subprocess_exec(
            *STARLING, "up", "--home", str(self.plan.home), "--model", self.plan.model, "--json", "--until-input-ends",
            *self.plan.flags,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env=self.plan.environment, start_new_session=True, limit=MAX_LINE_BYTES,
        )  # fmt: skip
        watching = asyncio.create_task(self._watch_traffic())
        try:
            await self._read(process)
            code = await process.wait()
        finally:
            watching.cancel()
            await asyncio.shield(_end(process))
            close_pipes(process)
            self._ended = True
            self._changed.set()
        if code != 0:
            lines = [line for note in self.tally.notes for line in note.splitlines()]
            messages = "\n".join(f"    {printable(line, 400)}" for line in lines)
            raise DemoError(f"{self.plan.label} ended with exit code {code}; its last messages:\n{messages}")

    def stop(self) -> None:
        """Asks the node to stop in order."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def address(self) -> str:
        """Waits until the node listens and returns its first address. Raises ``DemoError`` where it ends before."""
        while not self.tally.addresses:
            await self._change()
        return self.tally.addresses[0]

    async def until_ready(self) -> None:
        """Returns once the node trains and has a connected peer. Raises ``DemoError`` where it ends before."""
        while not (self.tally.ready and self.tally.connected):
            await self._change()

    async def until_generated(self, tokens: int) -> None:
        """Returns once the node has generated this many more tokens. Raises ``DemoError`` where it ends before."""
        enough = self.tally.effort().tokens_generated + tokens
        while self.tally.effort().tokens_generated < enough:
            await self._change()

    async def _change(self) -> None:
        if self._ended:
            raise DemoError(f"{self.plan.label} ended before its part was done")
        self._changed.clear()
        await self._changed.wait()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            try:
                self._on_event(decode_event(line))
            except (msgspec.DecodeError, UnicodeDecodeError):
                self._on_other_line(line)
            self._changed.set()

    def _on_event(self, event: Event) -> None:
        match event:
            case LearnerReady():
                self.tally.ready = True
            case RoundDone():
                self.tally.last = event
                self.tally.rewards.append(Point(event.time_seconds, event.reward))
                self.tally.rounds += 1
                self.tally.own_groups += event.own_groups
            case Averaged() if event.partner is not None:
                self.tally.averagings.append(event)
            case Stopped():
                self.tally.stopped = event
            case _:
                pass

    def _on_other_line(self, line: bytes) -> None:
        """A line of the supervisor, or text that is not JSON."""
        try:
            message = msgspec.json.decode(line, type=dict[str, object])
        except msgspec.DecodeError:
            message = {"text": line.decode("utf-8", "replace").strip()}
        if message.get("event") == "node" and isinstance(message["addresses"], list):
            self.tally.addresses = tuple(str(address) for address in message["addresses"])
        elif text := message.get("text") or message.get("because"):
            self.tally.notes.append(str(text))

    async def _watch_traffic(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            with contextlib.suppress(TransportError):  # not up yet, or ended: the figures stay unchanged
                status = await asyncio.to_thread(ask_status, Home(self.plan.home))
                if status.swarm is not None:
                    self.tally.sent_bytes = status.swarm.sent_bytes
                    self.tally.received_bytes = status.swarm.received_bytes
                    self.tally.connected = status.swarm.connected_peers > 0
                    self._changed.set()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends a node that still runs: in order, then at once, then by force. Its children end when their input ends."""
    if process.returncode is not None:
        return
    if process.stdin is not None:
        process.stdin.close()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), KILL_AFTER_SECONDS)
            return
