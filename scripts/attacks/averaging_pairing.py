"""Strangers that propose to average, serve what they offer and never say ``have``, beside honest replicas.

    python -m scripts.attacks.averaging_pairing [--minutes 60] [--strangers 8] [--seed 1] [--json]

Four replicas, whole members of a swarm on the simulated network, learn for ten to thirty seconds of virtual time and
then look for a partner, again and again. Strangers come when all of them have averaged: of no family, of the
replicas' family, or under a new name every minute, or every six. Each proposes to every replica all the time, fetches
what it is offered, and keeps the stream. Measured: commits of the replicas an hour, as a share of those without
strangers; then a fifth honest replica comes, and the virtual minutes until its first commit are measured, at most
``NEWCOMER_MINUTES``.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import anyio
from anyio.abc import TaskGroup

from protocol.errors import ProtocolError, TransportError
from protocol.streams.averaging_messages import AVERAGING_PROTOCOL, Accept, Decline, Have, Offer, Propose
from scripts.attacks.common.members import accepting, average_for_ever, in_virtual_time, now_seconds
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.scale.activity import offer_of
from scripts.bench.scale.swarm_node import heartbeat, new_service
from swarm import api
from swarm.averaging.weight_exchange import Conversation
from swarm.hosts.simulated.network import SimulatedHost, SimulatedNetwork
from swarm.service import SwarmService

REPLICAS: Final = 4
CALM_SECONDS: Final = 600.0  # before strangers come
NEWCOMER_MINUTES: Final = 60.0
KINDS: Final[Mapping[str, float]] = {  # how long a stranger keeps its name, in seconds
    "of no family": math.inf,
    "of the family": math.inf,
    "of the family, renamed": 60.0,
    "of the family, renamed every six minutes": 360.0,
}


@dataclass
class World:
    """One swarm in one folder."""

    folder: Path
    tasks: TaskGroup
    network: SimulatedNetwork
    first: SimulatedHost | None = None
    commits: int = 0
    made: int = 0
    committed: anyio.Event = field(default_factory=anyio.Event)  # once, by any replica of this world

    async def member(self) -> SwarmService:
        self.made += 1
        name = f"member {self.made}"
        host = self.network.host(name)
        service = new_service(host, name, self.folder / name, [self.first] if self.first else [], now_seconds)
        self.first = self.first or host
        self.tasks.start_soon(service.run)
        await service.started.wait()
        return service

    async def replica(self) -> None:
        """Learns, and averages, for ever."""
        service = await self.member()
        await service.answer(api.Beat(heartbeat("replica")))
        self.tasks.start_soon(average_for_ever, service, Random(self.made), self._note_commit)

    def _note_commit(self) -> None:
        self.commits += 1
        self.committed.set()

    async def stranger(self, *, of_family: bool) -> None:
        """Proposes to everybody, accepts everything, serves its blob, and never says that it holds a partner's."""
        service = await self.member()
        offer = offer_of(service, self.made)
        if of_family:
            await service.answer(api.Beat(heartbeat("stranger")))

        async def propose(peer: str) -> None:
            while True:
                with suppress(TransportError, ProtocolError):
                    stream = await service.host.open_stream(peer, AVERAGING_PROTOCOL, deadline_seconds=5.0)
                    await self._hold(service, Conversation(stream), peer, offer)
                await anyio.sleep(0.5)

        service.host.handle(AVERAGING_PROTOCOL, accepting(offer))
        await anyio.sleep(5.0)
        for peer in service.host.peers():
            self.tasks.start_soon(propose, peer)

    async def _hold(self, service: SwarmService, conversation: Conversation, peer: str, offer: Offer) -> None:
        try:
            await conversation.send(Propose(Random(self.made).randbytes(16), offer), 5.0)
            reply = await conversation.receive(5.0, Accept, Decline)
            if isinstance(reply, Accept):
                wanted = api.Wanted(reply.offer.blob, reply.offer.size, (peer,))
                await service.answer(api.Fetch((wanted,), 60.0))
                await conversation.receive(1e6, Have, Decline)
                await conversation.receive(1e6, Have, Decline)  # until the replica gives up
        finally:
            await conversation.stream.reset()


async def commits_and_newcomer(
    folder: Path, minutes: float, strangers: int, kind: str | None, seed: int
) -> tuple[float, float]:
    """Returns the replicas' commits an hour, and the minutes until a newcomer's first."""
    async with anyio.create_task_group() as tasks:
        world = World(folder, tasks, SimulatedNetwork(seed, delay_seconds=(0.02, 0.05)))
        for _ in range(REPLICAS):
            await world.replica()
        await anyio.sleep(CALM_SECONDS)
        if kind is not None:
            for _ in range(strangers):
                tasks.start_soon(_one_stranger, world, kind)
        before = world.commits
        await anyio.sleep(60.0 * minutes)
        found = world.commits - before
        newcomer = World(folder, tasks, world.network, world.first, made=500)
        came_seconds = anyio.current_time()
        await newcomer.replica()
        with anyio.move_on_after(60.0 * NEWCOMER_MINUTES):
            await newcomer.committed.wait()
        waited_minutes = (anyio.current_time() - came_seconds) / 60.0
        tasks.cancel_scope.cancel()
    return found * 60.0 / minutes, waited_minutes


async def _one_stranger(world: World, kind: str) -> None:
    while True:
        async with anyio.create_task_group() as tasks:
            named = World(world.folder, tasks, world.network, world.first, made=world.made + 1000)
            world.made += 1
            await named.stranger(of_family=kind != "of no family")
            await anyio.sleep(KINDS[kind])
            tasks.cancel_scope.cancel()


def measured(minutes: float, strangers: int, kind: str | None, seed: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="averaging-pairing-") as folder:
        return in_virtual_time(commits_and_newcomer, Path(folder), minutes, strangers, kind, seed)


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of virtual time under attack (default 60)")
    parser.add_argument("--strangers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=list(KINDS), help="strangers of this kind alone")
    options = parser.parse_args()
    calm, alone = measured(options.minutes, 0, None, options.seed)
    figures = [
        Figure("commits an hour, no strangers", calm, "commits", "higher"),
        Figure("minutes until a newcomer's first commit, no strangers", alone, "min", "lower"),
    ]
    for kind in options.only or KINDS:
        found, waited = measured(options.minutes, options.strangers, kind, options.seed)
        figures.append(Figure(f"commits an hour, strangers {kind}", found, "commits", "higher"))
        figures.append(Figure(f"share of calm, strangers {kind}", found / calm, "", "higher", "≥ 0.9"))
        figures.append(Figure(f"minutes until a newcomer's first commit, strangers {kind}", waited, "min", "lower"))
    report("averaging_pairing", figures, as_json=options.json)


if __name__ == "__main__":
    main()
