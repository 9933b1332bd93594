"""Output to people, written by a thread of its own, so that nobody who stops reading stops the node.

A pager, Ctrl-S, a terminal in copy mode or a stopped log reader leaves a pipe full, and the next write waits for as
long as they like. Here only the thread waits. What does not fit into a bounded queue is dropped and counted, and the
reader is told how many lines it missed as soon as it reads again.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TextIO, cast

MAX_BYTES = 1 << 20  # that wait for a reader
CLOSE_SECONDS = 2.0  # at the end, for a reader to take what waits
WAIT_SECONDS = 60.0  # between two looks at a descriptor that does not block and takes nothing

Told = Callable[[int], str]  # the line, without its end, that stands for so many dropped ones


def dropped_line(lines: int) -> str:
    return f"… {lines:,} lines were dropped here, because nobody read them …"


class OutputQueue:
    """Text on its way to one reader. ``put`` never waits; order is kept; a piece is written whole or not at all.

    ``write`` may wait; ``OSError`` or ``ValueError`` from it means that the reader has gone, and everything after that
    is dropped in silence. A queue that was full takes text again once half of it has been read.
    """

    def __init__(
        self, write: Callable[[bytes], None], *, told: Told = dropped_line, max_bytes: int = MAX_BYTES
    ) -> None:
        self._write, self._told, self._max_bytes = write, told, max_bytes
        self._pieces: deque[bytes] = deque()
        self._waiting_bytes = 0  # the piece that is being written included
        self._dropped_lines = 0
        self._closing = self._gone = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether everything was written: the reader keeps up."""
        with self._changed:
            return not self._waiting_bytes

    def put(self, text: str) -> None:
        """Queues ``text``; a full queue drops it."""
        piece = text.encode("utf-8", "replace")
        with self._changed:
            if self._gone or not piece:
                return
            room = self._max_bytes // 2 if self._dropped_lines else self._max_bytes
            if self._waiting_bytes + len(piece) > room:
                self._dropped_lines += max(1, piece.count(b"\n"))
                return
            self._tell_dropped()
            self._append(piece)

    def close(self, limit_seconds: float) -> bool:
        """Returns once everything was written, or after ``limit_seconds``; whether it was."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._gone or self._is_written, limit_seconds)

    @property
    def _is_written(self) -> bool:
        return not self._waiting_bytes and not self._dropped_lines

    def _tell_dropped(self) -> None:
        if self._dropped_lines:
            lines, self._dropped_lines = self._dropped_lines, 0
            self._append(f"{self._told(lines)}\n".encode())

    def _append(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._waiting_bytes += len(piece)
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pieces or self._closing)
                if not self._pieces:
                    return
                piece = self._pieces.popleft()
            try:
                self._write(piece)
            except (OSError, ValueError):  # closed by its reader, or by us
                with self._changed:
                    self._gone = True
                    self._pieces.clear()
                    self._changed.notify_all()
                return
            with self._changed:
                self._waiting_bytes -= len(piece)
                if not self._pieces:
                    self._tell_dropped()
                self._changed.notify_all()


def writer_to(descriptor: int) -> Callable[[bytes], None]:
    """Returns a function that writes all of a piece to ``descriptor``, however long that takes."""

    def write(piece: bytes) -> None:
        rest = memoryview(piece)
        while rest:
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BlockingIOError:  # another program has set it not to block
                select.select([], [descriptor], [], WAIT_SECONDS)

    return write


class QueuedText(io.TextIOBase):
    """A text stream into a queue. Text waits until its line is complete, or until ``flush``.

    ``also`` gets every whole piece too; it must not wait for a reader.
    """

    def __init__(
        self, queue: OutputQueue, like: TextIO | None = None, also: Callable[[bytes], None] | None = None
    ) -> None:
        super().__init__()
        self._queue, self._like, self._also = queue, like, also
        self._begun = ""
        self._lock = threading.Lock()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._like is not None and self._like.isatty()

    def fileno(self) -> int:
        if self._like is None:
            raise io.UnsupportedOperation("fileno")
        return self._like.fileno()

    def write(self, text: str) -> int:
        with self._lock:
            self._begun += text
            if "\n" in text:
                self._pass_on()
        return len(text)

    def flush(self) -> None:
        with self._lock:
            self._pass_on()

    def _pass_on(self) -> None:
        text, self._begun = self._begun, ""
        self._queue.put(text)
        if self._also is not None and text:
            self._also(text.encode("utf-8", "replace"))


@contextlib.contextmanager
def queued(stream: TextIO, told: Told = dropped_line) -> Iterator[OutputQueue]:
    """Gives a queue to ``stream``, and at the end waits at most ``CLOSE_SECONDS`` for its reader."""
    stream.flush()
    try:
        write = writer_to(stream.fileno())
    except (OSError, ValueError):  # not a file of the system: a test reads it

        def write(piece: bytes) -> None:
            stream.write(piece.decode())
            stream.flush()

    queue = OutputQueue(write, told=told)
    try:
        yield queue
    finally:
        queue.close(CLOSE_SECONDS)


def say_last(text: str) -> None:
    """Writes a line to standard error, and waits at most ``CLOSE_SECONDS`` for its reader."""
    with queued(sys.stderr) as queue:
        queue.put(f"{text}\n")


@contextlib.contextmanager
def queued_standard_error(also: Callable[[bytes], None]) -> Iterator[None]:
    """Within this, what is written to ``sys.stderr``, by logging and warnings too, waits for no reader.

    ``also`` gets it as well: a log file, which has no reader to wait for.
    """
    former = sys.stderr
    with queued(former) as queue:
        sys.stderr = cast(TextIO, QueuedText(queue, former, also))
        try:
            yield
        finally:
            sys.stderr.flush()
            sys.stderr = former
