"""One child process of the supervisor, from start to end: its input, its output, and the removal of what it leaves.

A child runs in a session of its own, so that a terminal's Ctrl-C reaches only the supervisor. It reads one line of
settings from standard input, and the end of that input means that the supervisor is gone. It holds the data directory's
lock as long as it lives (a tracker does not: it may hang). Processes that it leaves behind are killed.

The learner's side of this is ``node/learner/learner_process.py``, the swarm process's ``swarm/swarm_process.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

from node.api.types import ChildStatus
from node.compute_environment import compute_environment
from node.process_pipes import close_pipes
from node.supervision import restarts
from node.supervision.restarts import ChildEnd
from node.supervision.rolling_log import RollingLog

MAX_LINE_BYTES = 1 << 20  # of an event; a longer line is logged in pieces
LAST_LINES = 8
LAST_WORDS_SECONDS = 60.0  # a line that the child wrote longer before its end says nothing about its end
NO_ROOM_NOW = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})  # no descriptor, process or memory
DRAIN_SECONDS = 2.0  # to read the output that a dead child left in its pipes
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """How to start a child, and how to stop it."""

    process: str  # "swarm", "learner", or a tracker's name
    command: tuple[str, ...]
    first_line: bytes
    lock_descriptor: int | None  # None: it does not hold the data directory's lock
    stop_line: bytes | None = None  # the line that asks it to end; None: the end of its input asks it
    environment: tuple[tuple[str, str], ...] = ()  # beside this process's own


class Child:
    """One run of a child process, from its start to its end."""

    def __init__(self, spec: ChildSpec, log: RollingLog, on_line: Callable[[bytes], bool]) -> None:
        """``on_line`` receives each line of standard output and returns whether it was an event; others are logged."""
        self._spec = spec
        self.log = log
        self._on_line = on_line
        self._last_lines: deque[tuple[float, str]] = deque(maxlen=LAST_LINES)  # with the loop's time
        self._process: asyncio.subprocess.Process | None = None
        self._asked_to_end = False
        self.useful = False  # it has done its work at least once; set by the reader of its events

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def process(self) -> str:
        return self._spec.process

    @property
    def unread_bytes(self) -> int:
        """Bytes of ``send_line`` that wait in this process, because the child does not read them."""
        if self._process is None or self._process.stdin is None:
            return 0
        return self._process.stdin.transport.get_write_buffer_size()

    async def live(self) -> ChildEnd:
        """Starts the child and returns when it has ended, or at once where the system has no room for it now. If
        cancelled, kills it first."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._spec.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=compute_environment({**os.environ, **dict(self._spec.environment)}),
                start_new_session=True,
                pass_fds=() if self._spec.lock_descriptor is None else (self._spec.lock_descriptor,),
            )
        except OSError as error:
            if error.errno not in NO_ROOM_NOW:
                raise
            return ChildEnd(0, 0.0, useful=False, last_lines=(), not_started=os.strerror(error.errno))
        readers = [asyncio.create_task(self._read_events()), asyncio.create_task(self._read_log())]
        try:
            self.send_line(self._spec.first_line)
            if self._asked_to_end:  # before it had started
                self.ask_to_end()
            await self._ended()
            ended = clock()
        finally:
            self._kill_session()
            _, stuck = await asyncio.wait(readers, timeout=DRAIN_SECONDS)
            for reader in stuck:
                reader.cancel()
            close_pipes(process)
        for reader in readers:
            if not reader.cancelled() and reader.done():
                reader.result()
        return ChildEnd(process.returncode or 0, ended - began, self.useful, last_words(self._last_lines, ended))

    def send_line(self, line: bytes) -> None:
        """Writes one line to the child's standard input; does nothing if the child is gone."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._process.stdin.write(line + b"\n")

    def ask_to_end(self, line: bytes | None = None) -> None:
        """Asks the child to finish its work and end; ``line`` replaces the one that its spec names."""
        self._asked_to_end = True
        if self._spec.stop_line is not None:
            self.send_line(line or self._spec.stop_line)
        elif self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        """Kills the child and its descendants, if it still runs."""
        if self.pid is not None:
            self._kill_session()

    async def _ended(self) -> None:
        # asyncio's wait() may also wait for the pipes to close, which a surviving grandchild can keep open forever.
        assert self._process is not None
        waiting = asyncio.create_task(self._process.wait())
        try:
            while self._process.returncode is None:
                await asyncio.wait({waiting}, timeout=POLL_SECONDS)
        finally:
            waiting.cancel()

    def _kill_session(self) -> None:
        # The group keeps the child's id as long as any member lives, so no other process is killed.
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _read_events(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        async for line in _lines(self._process.stdout):
            if line and not self._on_line(line):
                self._write_log(line)

    async def _read_log(self) -> None:
        assert self._process is not None and self._process.stderr is not None
        async for line in _lines(self._process.stderr):
            self._write_log(line)

    def _write_log(self, line: bytes) -> None:
        self.log.append(line + b"\n")
        text = line.decode("utf-8", errors="replace").rstrip()
        if text:
            self._last_lines.append((asyncio.get_running_loop().time(), text))


@dataclass(slots=True)
class KeptChild:
    """A child process over all its restarts. The supervisor changes it as the child starts, becomes ready and ends."""

    spec: ChildSpec
    child: Child | None = None
    ends: list[ChildEnd] = field(default_factory=list)  # those that were not requested
    ready: bool = False  # in its present run

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return self.child.pid if self.child is not None else None

    def status(self) -> ChildStatus:
        last_end = restarts.describe(self.spec.process, self.ends[-1]) if self.ends else None
        return ChildStatus(self.pid, len(self.ends), last_end)


def last_words(lines: Iterable[tuple[float, str]], ended_seconds: float) -> tuple[str, ...]:
    """Returns the lines that a child wrote within ``LAST_WORDS_SECONDS`` before its end, or after it. Both times are of
    one clock."""
    return tuple(text for wrote_seconds, text in lines if ended_seconds - wrote_seconds <= LAST_WORDS_SECONDS)


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yields lines without line ends; a line over ``MAX_LINE_BYTES`` comes in pieces."""
    pending = b""
    while part := await reader.read(1 << 16):
        *whole, pending = (pending + part).split(b"\n")
        for line in whole:
            yield line
            await asyncio.sleep(0)  # a burst of lines must not block the supervisor's other work
        if len(pending) > MAX_LINE_BYTES:
            yield pending
            pending = b""
    if pending:
        yield pending
