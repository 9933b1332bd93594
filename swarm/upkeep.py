"""What a node does for its own disk and memory: it drops what is old."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import anyio
import anyio.lowlevel
import anyio.to_thread

from swarm.announcements.group_sharing import GROUP_BLOB_SECONDS, GroupSharing
from swarm.blobs.incoming import clear_flat_folder, flat_folder
from swarm.blobs.store import ContentStore

MAINTENANCE_SECONDS: Final = 30.0


class Upkeep:
    def __init__(self, store: ContentStore, groups: GroupSharing, *, wall_clock: Callable[[], float]) -> None:
        self._store, self._groups, self._wall_clock = store, groups, wall_clock

    async def run(self) -> None:
        """Tends everything every ``MAINTENANCE_SECONDS``, until it is cancelled."""
        while True:
            await anyio.sleep(MAINTENANCE_SECONDS)
            while self._store.tend():
                await anyio.lowlevel.checkpoint()
            self._groups.tend()

    async def clear_flat_folder(self) -> None:
        """Empties what an older version left: up to a million files, which takes minutes."""
        if flat_folder(self._store.directory).exists():
            before_seconds = self._wall_clock() - GROUP_BLOB_SECONDS
            clear = partial(clear_flat_folder, self._store.directory, before_seconds=before_seconds)
            await anyio.to_thread.run_sync(clear, abandon_on_cancel=True)
