"""Announcements on their way to the daemon, which sends one only to the neighbours of its mesh.

A peer that has just connected is in no mesh before the next heartbeat of GossipSub, and what is published until then
never reaches it. So a message waits here until no connection is younger than a heartbeat, for ``HELD_SECONDS`` at most.
Messages leave in their order and no faster than the daemon passes them on: above 32 that wait for one neighbour it
drops the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import anyio

from protocol.errors import HostEndedError
from swarm.hosts.go import daemon_messages as messages
from swarm.hosts.go.control import ControlSocket

HEARTBEAT_SECONDS = 1.2  # the daemon's is 1 s
HELD_SECONDS = 2.0  # where peers connect all the time
POLL_SECONDS = 0.05
BETWEEN_SECONDS = 0.002
WAITING = 1024  # messages; the oldest is dropped above


class Publishing:
    """``youngest_at_seconds`` returns when the newest of the connections was first seen."""

    def __init__(self, youngest_at_seconds: Callable[[], float]) -> None:
        self.sent_bytes = 0
        self.dropped = 0
        self._youngest_at_seconds = youngest_at_seconds
        self._waiting: deque[tuple[float, str, bytes]] = deque()  # (since, topic, message)
        self._more = anyio.Event()
        self._is_ending = False

    def put(self, topic: str, message: bytes) -> None:
        self._waiting.append((anyio.current_time(), topic, message))
        if len(self._waiting) > WAITING:
            self._waiting.popleft()
            self.dropped += 1
        self._more.set()

    async def run(self, control: ControlSocket) -> None:
        while True:
            while self._waiting:
                since_seconds, topic, message = self._waiting[0]
                while self._is_held(since_seconds):  # noqa: ASYNC110  until a time that moves
                    await anyio.sleep(POLL_SECONDS)
                answer = await control.request(messages.publish(topic, message))
                if answer.error is not None:
                    raise HostEndedError(f"the daemon p2pd does not publish: {answer.error}")
                self.sent_bytes += len(message)
                if self._waiting and self._waiting[0][2] is message:  # not dropped meanwhile
                    self._waiting.popleft()
                await anyio.sleep(BETWEEN_SECONDS)
            self._more = anyio.Event()
            await self._more.wait()

    def _is_held(self, since_seconds: float) -> bool:
        now_seconds = anyio.current_time()
        is_young = now_seconds - self._youngest_at_seconds() < HEARTBEAT_SECONDS
        return is_young and now_seconds - since_seconds < HELD_SECONDS and not self._is_ending

    async def flush(self, seconds: float) -> None:
        """Waits until everything has left, at most so long; nothing is held any longer."""
        self._is_ending = True
        with anyio.move_on_after(seconds):
            while self._waiting:  # noqa: ASYNC110  at the end of a process, for a moment
                await anyio.sleep(POLL_SECONDS / 5)
