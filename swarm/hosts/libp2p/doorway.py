"""Places for incoming connections that have not finished their handshake, apart from those that have.

A stranger opens sockets for nothing, without any key. So an accepted socket has ``FIRST_BYTES_SECONDS`` to say
something, and the library hears of it only then: the side that dials speaks first in libp2p, and a private network
(``private_network``) requires it. Silent sockets and unfinished handshakes have places of their own. When these are
taken, a newcomer is never refused: the oldest connection of the most crowded address leaves. A handshake that takes h
seconds therefore succeeds while fewer than places ÷ h connections a second come from addresses as crowded as its own,
and strangers elsewhere cannot end it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from swarm.address_groups import Groups, groups_of, most_crowded
from swarm.hosts.libp2p.containment import Failures

FIRST_BYTES_SECONDS = 2.0
SILENT_PLACES = 64
HANDSHAKE_PLACES = 256


class Visitor(Protocol):
    """An accepted connection."""

    def get_remote_address(self) -> tuple[str, int] | None: ...

    def drop(self) -> None:
        """Closes it at once; whatever waits for it ends."""


class WaitingRoom:
    """At most ``places`` visitors; above that the oldest of the most crowded address is dropped, and counted."""

    def __init__(self, places: int, name: str, failures: Failures) -> None:
        self._places = places
        self._name = name
        self._failures = failures
        self._visitors: dict[Visitor, Groups] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._visitors)

    def enter(self, visitor: Visitor) -> None:
        remote = visitor.get_remote_address()
        self._visitors[visitor] = groups_of(remote[0] if remote is not None else "")
        while len(self._visitors) > self._places:
            oldest = most_crowded(self._visitors.keys(), self._visitors.values())[0]
            del self._visitors[oldest]
            oldest.drop()
            self._failures.note(self._name, ConnectionAbortedError(f"{self._places} others wait; the oldest left"))

    def leave(self, visitor: Visitor) -> None:
        self._visitors.pop(visitor, None)

    @contextmanager
    def place_for(self, visitor: Visitor) -> Iterator[None]:
        self.enter(visitor)
        try:
            yield
        finally:
            self.leave(visitor)


class Doorway:
    """The rooms that all listeners of a host share."""

    def __init__(self, failures: Failures) -> None:
        self.silent = WaitingRoom(SILENT_PLACES, "silent connection", failures)
        self.handshaking = WaitingRoom(HANDSHAKE_PLACES, "unfinished handshake", failures)
