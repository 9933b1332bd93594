"""One node of the demonstration: a whole ``starling up`` in a data directory of its own, and its figures."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from node.api.node_client import ask_status
from node.demo.plan import Effort
from node.evaluation.evaluation_result import Evaluation
from node.events import Averaged, Event, LearnerReady, RoundDone, Stopped, decode_event
from node.home import Home
from node.printable import printable
from protocol.errors import StarlingError, TransportError

END_SECONDS = 10.0  # for each way of ending a node, from the polite one to the last
STARLING = (sys.executable, "-P", "-m", "node.cli.main")
LINE_BYTES = 1 << 22


class DemoError(StarlingError):
    """A node of the demonstration did not do its part."""

    reason = "demo"


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """What one node of the demonstration is to be."""

    model: str
    home: Path
    environment: dict[str, str]
    label: str  # what it is called here
    flags: tuple[str, ...] = ()  # of ``starling up``


@dataclass(frozen=True, slots=True)
class Point:
    """One figure at its time."""

    time_seconds: float
    value: float


@dataclass(slots=True)
class Tally:
    """What a node has said so far."""

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
            last.groups_shared_total if last else 0,
            self.sent_bytes,
            self.received_bytes,
        )


class DemoNode:
    """A node from its start to its end. ``live`` ends it, and all that belongs to it, when cancelled."""

    def __init__(self, plan: MemberPlan) -> None:
        self.plan = plan
        self.tally = Tally()
        self._process: asyncio.subprocess.Process | None = None
        self._changed = asyncio.Event()
        self._ended = False

    async def live(self) -> None:
        """Starts the node and returns once it has ended well. Raises ``DemoError`` with its last words otherwise."""
        # Its own session: a terminal's Ctrl-C is for the demonstration, which ends its nodes in order. Its input stays
        # open as long as we live, so that it ends even if we are killed.
        self._process = process = await asyncio.create_subprocess_exec(
            *STARLING, "up", "--home", str(self.plan.home), "--model", self.plan.model, "--json", "--until-input-ends",
            *self.plan.flags,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env=self.plan.environment, start_new_session=True, limit=LINE_BYTES,
        )  # fmt: skip
        watching = asyncio.create_task(self._watch_traffic())
        try:
            await self._read(process)
            code = await process.wait()
        finally:
            watching.cancel()
            await asyncio.shield(_end(process))
            self._ended = True
            self._changed.set()
        if code != 0:
            lines = [line for note in self.tally.notes for line in note.splitlines()]
            words = "\n".join(f"    {printable(line, 400)}" for line in lines)
            raise DemoError(f"{self.plan.label} ended with exit code {code}; its last words:\n{words}")

    def stop(self) -> None:
        """Asks the node to end in order."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def address(self) -> str:
        """Its first address, once it listens."""
        while not self.tally.addresses:
            await self._change()
        return self.tally.addresses[0]

    async def until_ready(self) -> None:
        """Returns once it trains and knows a peer."""
        while not (self.tally.ready and self.tally.connected):
            await self._change()

    async def _change(self) -> None:
        if self._ended:
            raise DemoError(f"{self.plan.label} ended before it was ready")
        self._changed.clear()
        await self._changed.wait()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            try:
                self._take(decode_event(line))
            except (msgspec.DecodeError, UnicodeDecodeError):
                self._take_other(line)
            self._changed.set()

    def _take(self, event: Event) -> None:
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

    def _take_other(self, line: bytes) -> None:
        try:
            said = msgspec.json.decode(line, type=dict[str, object])
        except msgspec.DecodeError:
            said = {"text": line.decode("utf-8", "replace").strip()}
        if said.get("event") == "node" and isinstance(said["addresses"], list):
            self.tally.addresses = tuple(str(address) for address in said["addresses"])
        elif text := said.get("text") or said.get("because"):
            self.tally.notes.append(str(text))

    async def _watch_traffic(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            with contextlib.suppress(TransportError):  # not up yet, or gone: the figures stay as they were
                status = await asyncio.to_thread(ask_status, Home(self.plan.home))
                if status.swarm is not None:
                    self.tally.sent_bytes = status.swarm.sent_bytes
                    self.tally.received_bytes = status.swarm.received_bytes
                    self.tally.connected = status.swarm.connected_peers > 0
                    self._changed.set()


async def evaluate(home: Path, model: str, prompts: int, environment: dict[str, str]) -> Evaluation:
    """What the newest checkpoint in ``home`` can do, or ``model`` where there is none. Raises ``DemoError``."""
    process = await asyncio.create_subprocess_exec(
        *STARLING, "eval", "--home", str(home), "--model", model, "--prompts", str(prompts), "--json",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        said, complained = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode != 0:
        raise DemoError(
            f"starling eval of {model} failed: {printable(complained.decode(errors='replace')[-1000:], 1000)}"
        )
    return msgspec.json.decode(said, type=Evaluation)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends a node that still runs: in order, then at once, then by force; its children see their input end."""
    if process.returncode is not None:
        return
    if process.stdin is not None:
        process.stdin.close()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_SECONDS)
            return
