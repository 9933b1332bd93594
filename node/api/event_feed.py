"""What happens in the node, as server-sent events to any number of readers, up to ``READERS``.

https://html.spec.whatwg.org/multipage/server-sent-events.html

Nobody is waited for: each reader has a queue of ``QUEUE_EVENTS``, and one whose queue is full is dropped, its
connection aborted. It may come back and begins with the state as it is then; nothing is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

READERS = 32
QUEUE_EVENTS = 256  # at an event or two a second, minutes of silence


class FeedReader:
    """One connection's events, in order, until it is dropped or the feed closes."""

    def __init__(self, on_drop: Callable[[], None]) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUE_EVENTS + 1)  # one place for the end
        self._on_drop = on_drop

    def offer(self, message: bytes) -> bool:
        """Whether there was room for ``message``."""
        if self._queue.qsize() >= QUEUE_EVENTS:
            return False
        self._queue.put_nowait(message)
        return True

    def end(self) -> None:
        """Nothing comes after what was offered."""
        if not self._queue.full():
            self._queue.put_nowait(None)

    def drop(self) -> None:
        self._on_drop()
        self.end()

    async def messages(self) -> AsyncIterator[bytes]:
        while (message := await self._queue.get()) is not None:
            yield message


class EventFeed:
    """All readers of one node's events."""

    def __init__(self) -> None:
        self._readers: set[FeedReader] = set()
        self._number = 0
        self._closed = False
        self.dropped = 0  # readers that were too slow

    @property
    def readers(self) -> int:
        return len(self._readers)

    def publish(self, kind: str, body: bytes) -> None:
        """Gives every reader one event; ``body`` is JSON on one line. Never blocks."""
        self._number += 1
        message = message_of(kind, body, self._number)
        for reader in list(self._readers):
            if not reader.offer(message):
                self._readers.discard(reader)
                self.dropped += 1
                reader.drop()

    @contextmanager
    def reader(self, on_drop: Callable[[], None]) -> Iterator[FeedReader | None]:
        """A reader from now on; None where there are too many, or the feed is closed. ``on_drop`` ends its
        connection."""
        if self._closed or len(self._readers) >= READERS:
            yield None
            return
        reader = FeedReader(on_drop)
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)

    def close(self) -> None:
        """Ends every reader once it has what was published."""
        self._closed = True
        for reader in self._readers:
            reader.end()


def message_of(kind: str, body: bytes, number: int | None = None) -> bytes:
    """One server-sent event."""
    identified = b"" if number is None else b"id: %d\n" % number
    return identified + b"event: %s\ndata: %s\n\n" % (kind.encode(), body)
