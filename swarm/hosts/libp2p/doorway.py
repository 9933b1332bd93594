"""Places for incoming connections that have not finished their handshake, apart from those that have.

A stranger opens sockets for nothing, without any key. So an accepted socket has ``FIRST_BYTES_SECONDS`` to say
something, and the library hears of it only then: the side that dials speaks first in libp2p, and a private network
(``private_network``) requires it. Until then it has no task either: one task waits for all, so that a flood of silent
sockets is accepted and closed faster than it comes, and an honest peer does not wait behind it in the system's queue.
Silent sockets and unfinished handshakes have places of their own. When these are taken, a newcomer is never refused:
the oldest connection of the most crowded address leaves. A handshake that takes h seconds therefore succeeds while
fewer than places ÷ h connections a second come from addresses as crowded as its own, and strangers elsewhere cannot
end it.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import trio

from swarm.address_groups import Groups, groups_of, most_crowded
from swarm.hosts.libp2p.containment import Failures

FIRST_BYTES_SECONDS = 2.0
SILENT_CHECK_SECONDS = 0.25  # between two looks for those whose time is over
SILENT_PLACES = 128
HANDSHAKE_PLACES = 256


class Visitor(Protocol):
    """An accepted connection."""

    def get_remote_address(self) -> tuple[str, int] | None: ...

    def drop(self) -> None:
        """Closes it at once; whatever waits for it ends."""


V = TypeVar("V", bound=Visitor)


class WaitingRoom(Generic[V]):
    """At most ``places`` visitors; above that the oldest of the most crowded address is dropped, and counted."""

    def __init__(self, places: int, name: str, failures: Failures) -> None:
        self._places = places
        self._name = name
        self._failures = failures
        self._visitors: dict[V, Groups] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._visitors)

    def visitors(self) -> list[V]:
        """Returns them, the oldest first."""
        return list(self._visitors)

    def enter(self, visitor: V) -> None:
        remote = visitor.get_remote_address()
        self._visitors[visitor] = groups_of(remote[0] if remote is not None else "")
        while len(self._visitors) > self._places:
            oldest = most_crowded(self._visitors.keys(), self._visitors.values())[0]
            del self._visitors[oldest]
            oldest.drop()
            self._failures.note(self._name, ConnectionAbortedError(f"{self._places} others wait; the oldest left"))

    def leave(self, visitor: V) -> None:
        self._visitors.pop(visitor, None)

    @contextmanager
    def place_for(self, visitor: V) -> Iterator[None]:
        self.enter(visitor)
        try:
            yield
        finally:
            self.leave(visitor)


@dataclass(eq=False, slots=True)
class SilentSocket:
    """A socket that was accepted from ``ip`` and has not said anything yet."""

    accepted: socket.socket
    ip: str
    until_seconds: float
    on_spoken: Callable[[socket.socket], None]
    selector: selectors.BaseSelector

    def get_remote_address(self) -> tuple[str, int]:
        return self.ip, 0

    def drop(self) -> None:
        self.selector.unregister(self.accepted)
        self.accepted.close()


class SilentSockets:
    """At most ``SILENT_PLACES`` sockets, for ``FIRST_BYTES_SECONDS`` each, and one task for all of them."""

    def __init__(self, failures: Failures) -> None:
        self._room: WaitingRoom[SilentSocket] = WaitingRoom(SILENT_PLACES, "silent connection", failures)
        self._selector = selectors.DefaultSelector()

    def __len__(self) -> int:
        return len(self._room)

    def enter(self, accepted: socket.socket, ip: str, on_spoken: Callable[[socket.socket], None]) -> None:
        """Takes a socket that does not block. ``on_spoken`` is called with it once its other end has sent something,
        which stays unread; otherwise it is closed."""
        until_seconds = trio.current_time() + FIRST_BYTES_SECONDS
        silent = SilentSocket(accepted, ip, until_seconds, on_spoken, self._selector)
        self._selector.register(accepted, selectors.EVENT_READ, silent)
        self._room.enter(silent)

    async def run(self) -> None:
        """Runs until cancelled, and then closes all that wait."""
        try:
            while True:
                with trio.move_on_after(SILENT_CHECK_SECONDS):
                    await trio.lowlevel.wait_readable(self._selector.fileno())  # epoll's or kqueue's own
                for key, _ in self._selector.select(0):
                    self._on_readable(key.data)
                self._close_overdue()
        finally:
            for silent in self._selector.get_map().values():
                silent.data.accepted.close()
            self._selector.close()

    def _on_readable(self, silent: SilentSocket) -> None:
        self._room.leave(silent)
        self._selector.unregister(silent.accepted)
        try:
            has_spoken = bool(silent.accepted.recv(1, socket.MSG_PEEK))
        except OSError:
            has_spoken = False
        if has_spoken:
            silent.on_spoken(silent.accepted)
        else:
            silent.accepted.close()

    def _close_overdue(self) -> None:
        now_seconds = trio.current_time()
        for silent in self._room.visitors():
            if silent.until_seconds > now_seconds:
                return
            self._room.leave(silent)
            silent.drop()


class Doorway:
    """The rooms that all listeners of a host share."""

    def __init__(self, failures: Failures) -> None:
        self.silent = SilentSockets(failures)
        self.handshaking: WaitingRoom[Visitor] = WaitingRoom(HANDSHAKE_PLACES, "unfinished handshake", failures)
