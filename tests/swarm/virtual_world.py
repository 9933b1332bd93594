"""A directory and a simulated network, in which a test tells its story in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, Self

import anyio
from trio.testing import MockClock

from swarm.hosts.simulated.network import SimulatedNetwork

STORY_SECONDS = 10_000.0  # of virtual time, at most


class Averaging(Protocol):
    """A node that averages; ``ended`` is set once it has."""

    ended: anyio.Event


class VirtualWorld:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.network = SimulatedNetwork(seed=1, delay_seconds=(0.05, 0.05))

    def again(self, name: str) -> Self:
        """Another world like this one, with its clock at zero."""
        return type(self)(self.directory / name)

    @staticmethod
    def play(story: Callable[[], Awaitable[None]]) -> None:
        async def guarded() -> None:
            with anyio.fail_after(STORY_SECONDS):
                await story()

        anyio.run(guarded, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})

    @staticmethod
    async def over(*nodes: Averaging) -> None:
        for node in nodes:
            await node.ended.wait()
