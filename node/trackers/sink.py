"""Hands a run's numbers to trackers, each in a process of its own: one that hangs, raises or dies costs the node
nothing.

Numbers that a tracker does not read in time are dropped once ``MAX_UNREAD_BYTES`` wait for it; ``metrics.jsonl`` has
them all. A tracker that ended is not started again. Either is noted once.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from node.configuration import Config
from node.configuration.published import shaping_configuration
from node.events import Event
from node.home import Home
from node.supervision import restarts
from node.supervision.children import Child, ChildSpec
from node.supervision.rolling_log import RollingLog
from node.trackers.records import TrackedRun, record_of

MAX_UNREAD_BYTES: Final = 1 << 20  # some hundred rounds
STOP_SECONDS: Final = 15.0  # to finish; a tracker's process ends itself before that
LOG_BYTES: Final = 4 << 20

COMMAND: Final = (sys.executable, "-P", "-m", "node.trackers.tracker_process")


def tracker_specs(home: Home, config: Config) -> tuple[ChildSpec, ...]:
    """Returns how to start the configured trackers."""
    settings = shaping_configuration(config.model_dump(mode="json"))
    return tuple(
        ChildSpec(name, COMMAND, msgspec.json.encode(TrackedRun(name, str(home.path), config.name, settings)), None)
        for name in dict.fromkeys(config.trackers)
    )


class TrackerSink:
    """The trackers of one node. ``start`` and ``close`` once each; ``add`` never blocks or raises."""

    def __init__(self, home: Home, specs: Sequence[ChildSpec], note: Callable[[str], None]) -> None:
        """``note`` tells the user."""
        self._note = note
        self._children = [
            Child(spec, RollingLog(home.log(spec.process), max_bytes=LOG_BYTES), lambda _line: False) for spec in specs
        ]
        self._lives: list[asyncio.Task[None]] = []
        self._closing = False
        self._slow: set[Child] = set()

    def start(self) -> None:
        self._lives = [asyncio.create_task(self._live(child)) for child in self._children]

    def add(self, event: Event) -> None:
        """Hands on the event's numbers, if it has any for trackers."""
        record = record_of(event) if self._children else None
        if record is None:
            return
        line = msgspec.json.encode(record)
        for child in self._children:
            if child.pid is None:
                continue
            if child.unread_bytes + len(line) <= MAX_UNREAD_BYTES:
                child.send_line(line)
            elif child not in self._slow:
                self._slow.add(child)
                self._note(f"The tracker {child.process} does not keep up: numbers for it are dropped meanwhile.")

    async def close(self, at_once: asyncio.Event) -> None:
        """Lets the trackers finish, for ``STOP_SECONDS`` at most, or until ``at_once`` is set."""
        self._closing = True
        for child in self._children:
            child.ask_to_end()
        ended = asyncio.gather(*self._lives)
        hurry = asyncio.create_task(at_once.wait())
        both: set[asyncio.Future[Any]] = {ended, hurry}
        await asyncio.wait(both, timeout=STOP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        for child in self._children:
            child.kill()
        await ended

    async def _live(self, child: Child) -> None:
        try:
            end = await child.live()
        except OSError as error:
            self._note(f"The tracker {child.process} could not be started ({error.strerror}).")
            return
        if not self._closing or end.returncode != 0:
            description = restarts.describe(f"the tracker {child.process}", end)
            self._note(f"{description}\nThe node continues without it; metrics.jsonl has every number.")
