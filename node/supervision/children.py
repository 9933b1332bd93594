"""One child process of the supervisor, from start to end: what it is told, what it tells, and that nothing of it stays.

A child runs in a session of its own, so that a terminal's Ctrl-C reaches the supervisor alone. It gets one line of
settings on standard input, and takes the end of that input as "the supervisor is gone". It holds the data directory's
lock as long as it lives. Whatever processes it leaves behind are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from node.compute_environment import compute_environment
from node.supervision.restarts import End
from node.supervision.rolling_log import RollingLog

MAX_LINE_BYTES = 1 << 20  # of an event; a longer line goes to the log in pieces
LAST_LINES = 8
DRAIN_SECONDS = 2.0  # for output that a dead child left in its pipes
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to start."""

    process: str  # "swarm", "learner"
    command: tuple[str, ...]
    first_line: bytes
    lock_descriptor: int
    stop_line: bytes | None = None  # asks it to end; without one, the end of its input does


class Child:
    """One life of a child process."""

    def __init__(self, spec: ChildSpec, log: RollingLog, on_line: Callable[[bytes], bool]) -> None:
        """``on_line`` gets each line of standard output and says whether it was an event; others go to ``log``."""
        self._spec = spec
        self.log = log
        self._on_line = on_line
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._process: asyncio.subprocess.Process | None = None
        self._asked_to_end = False
        self.useful = False  # it did what it is for; set by whoever reads its events

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def live(self) -> End:
        """Starts it and returns once it has ended. Cancelled, it kills the child first."""
        clock = asyncio.get_running_loop().time
        began = clock()
        self._process = process = await asyncio.create_subprocess_exec(
            *self._spec.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=compute_environment(os.environ),
            start_new_session=True,
            pass_fds=(self._spec.lock_descriptor,),
        )
        readers = [asyncio.create_task(self._read_events()), asyncio.create_task(self._read_log())]
        try:
            self.tell(self._spec.first_line)
            if self._asked_to_end:  # before it was there
                self.ask_to_end()
            await self._ended()
        finally:
            self._kill_session()
            _, stuck = await asyncio.wait(readers, timeout=DRAIN_SECONDS)
            for reader in stuck:
                reader.cancel()
        for reader in readers:
            if not reader.cancelled() and reader.done():
                reader.result()
        return End(process.returncode or 0, clock() - began, self.useful, tuple(self._last_lines))

    def tell(self, line: bytes) -> None:
        """Writes one line to its standard input; a child that is gone hears nothing."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._process.stdin.write(line + b"\n")

    def ask_to_end(self) -> None:
        """It is to finish what it does and end."""
        self._asked_to_end = True
        if self._spec.stop_line is not None:
            self.tell(self._spec.stop_line)
        elif self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        """Ends it and its descendants at once, if it still lives."""
        if self.pid is not None:
            self._kill_session()

    async def _ended(self) -> None:
        # asyncio's wait() may also wait for the pipes to close, which a surviving grandchild can hold open for ever.
        assert self._process is not None
        waiting = asyncio.create_task(self._process.wait())
        try:
            while self._process.returncode is None:
                await asyncio.wait({waiting}, timeout=POLL_SECONDS)
        finally:
            waiting.cancel()

    def _kill_session(self) -> None:
        # The group keeps the child's number as long as any member lives, so this reaches nobody else.
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
            self._last_lines.append(text)


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Lines without their ends; one over ``MAX_LINE_BYTES`` comes in pieces."""
    pending = b""
    while part := await reader.read(1 << 16):
        *whole, pending = (pending + part).split(b"\n")
        for line in whole:
            yield line
            await asyncio.sleep(0)  # a burst of lines must not hold up what else the supervisor does
        if len(pending) > MAX_LINE_BYTES:
            yield pending
            pending = b""
    if pending:
        yield pending
