"""The node's events as server-sent events, for at most ``MAX_READERS`` readers, ``OTHERS_READERS`` of other users.

https://html.spec.whatwg.org/multipage/server-sent-events.html

Publishing never waits for a reader. Each reader has a queue of ``MAX_QUEUED_EVENTS``; a reader whose queue is full is
dropped and its connection aborted. It may connect again and then begins with the current state; nothing is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

MAX_READERS = 32
OTHERS_READERS = 16  # from other users of the machine, so that the owner's page always finds a place
MAX_QUEUED_EVENTS = 256  # at one or two events a second, minutes during which a reader reads nothing


class FeedReader:
    """The events of one connection, in order, until the reader is dropped or the feed closes."""

    def __init__(self, on_drop: Callable[[], None], *, is_owner: bool) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_QUEUED_EVENTS + 1)  # one place for the end
        self._on_drop = on_drop
        self.is_owner = is_owner

    def offer(self, message: bytes) -> bool:
        """Queues ``message`` and returns True, or returns False where the queue is full."""
        if self._queue.qsize() >= MAX_QUEUED_EVENTS:
            return False
        self._queue.put_nowait(message)
        return True

    def end(self) -> None:
        """Ends ``messages`` after those that are queued."""
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
    def reader(self, on_drop: Callable[[], None], *, is_owner: bool = True) -> Iterator[FeedReader | None]:
        """Adds a reader for the duration of the context; gives None where there are too many readers or the feed is
        closed. ``on_drop`` is called when the reader is dropped, and must end its connection. ``is_owner`` says whether
        it belongs to the user that the node runs as."""
        others = sum(not reader.is_owner for reader in self._readers)
        if self._closed or len(self._readers) >= MAX_READERS or (not is_owner and others >= OTHERS_READERS):
            yield None
            return
        reader = FeedReader(on_drop, is_owner=is_owner)
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)

    def close(self) -> None:
        """Ends every reader after the events that were published before."""
        self._closed = True
        for reader in self._readers:
            reader.end()


def message_of(kind: str, body: bytes, number: int | None = None) -> bytes:
    """Encodes one server-sent event."""
    identified = b"" if number is None else b"id: %d\n" % number
    return identified + b"event: %s\ndata: %s\n\n" % (kind.encode(), body)
