"""What the node uses of machine and network: memory by process, traffic, and the GPU that the learner uses."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from node.events import DeviceUsage, Usage
from node.supervision.watching.device_usage import device_usage
from node.supervision.watching.process_memory import resident_bytes, resident_bytes_of_session
from swarm.api import SwarmStatus

DEVICE_SECONDS: Final = 10.0  # between two looks at the GPU


class UsageWatch:
    """``watch_device`` runs beside calls of ``look``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` gives Unix time."""
        self._clock = clock
        self.newest: Usage | None = None
        self._device: DeviceUsage | None = None

    @property
    def learner_bytes(self) -> int | None:
        """Resident bytes of the learner with its workers when last looked at."""
        return self.newest.learner_bytes if self.newest is not None else None

    async def look(
        self, learner: int | None, swarm: int | None, swarm_status: Callable[[], SwarmStatus | None]
    ) -> Usage:
        """Returns what the node uses now. ``learner`` and ``swarm`` are the processes' ids, None for one that does not
        run."""
        supervisor_bytes, learner_bytes, swarm_bytes = await asyncio.to_thread(_resident, learner, swarm)
        traffic = swarm_status()
        self.newest = Usage(
            time_seconds=self._clock(),
            supervisor_bytes=supervisor_bytes,
            learner_bytes=learner_bytes,
            swarm_bytes=swarm_bytes,
            sent_bytes_total=traffic.sent_bytes if traffic is not None else None,
            received_bytes_total=traffic.received_bytes if traffic is not None else None,
            device=self._device if learner is not None else None,
        )
        return self.newest

    async def watch_device(self, device: Callable[[], str | None]) -> None:
        """Asks for the figures of the GPU now and then, until it is cancelled. ``device`` returns torch's name of what
        the learner uses, None before the learner says so."""
        while True:
            name = device()
            self._device = await device_usage(name) if name is not None else None
            await asyncio.sleep(DEVICE_SECONDS)


def _resident(learner: int | None, swarm: int | None) -> tuple[int | None, int | None, int | None]:
    """Returns resident bytes of the supervisor, of the learner with its workers, and of the swarm process."""
    of_children = [resident_bytes_of_session(pid) if pid is not None else None for pid in (learner, swarm)]
    return resident_bytes(os.getpid()), of_children[0], of_children[1]
