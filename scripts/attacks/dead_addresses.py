"""Peers that answer who else is there with addresses at which nobody is, on the simulated network in virtual time.

A newcomer knows ``--liars`` alone, which answer every question with 64 new addresses, each under an identity of its
own, in a network of its own (or all at one IP address, with ``--storm``, of somebody who has nothing to do with the
swarm), at which dials hang until their deadline. After five minutes one honest node dials it, and tells it of the
others. Counted is the time from then until the newcomer is connected to all of ``--honest`` nodes, and how often
addresses of the liars are dialled.

    python -m scripts.attacks.dead_addresses [--liars 3] [--honest 6] [--storm] [--json]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from itertools import count
from random import Random

import anyio

from protocol.errors import DeadlineError
from protocol.identity import NodeKey
from scripts.attacks.common.members import in_virtual_time
from scripts.bench.common.reporting import Figure, figures_parser, report
from swarm.hosts.simulated.network import SimulatedHost, SimulatedNetwork
from swarm.peers.peer_exchange import PeerExchange
from swarm.peers.peering import Peering

SWARM = bytes(range(16))
SETTLE_SECONDS = 60.0
LIED_TO_SECONDS = 300.0
LASTS_SECONDS = 1800.0


class Dead:
    """Addresses at which nobody is, and how often they are dialled at once and in all."""

    def __init__(self, *, storm: bool) -> None:
        self.dials = 0
        self.at_once = 0
        self.most_at_once = 0
        self._storm = storm
        self._numbers = count()
        self._made: set[str] = set()

    def make(self) -> str:
        number = next(self._numbers)
        ip = "203.0.113.1" if self._storm else f"172.{16 + number // 65536 % 16}.{number // 256 % 256}.{number % 256}"
        address = f"/ip4/{ip}/tcp/{1024 + number % 60000}/p2p/{NodeKey.generate().peer_id}"
        self._made.add(address)
        return address

    def put_behind(self, host: SimulatedHost) -> None:
        """Lets dials of ``host`` to these addresses hang, as those to a machine that drops packets."""
        connect = host.connect

        async def dial(address: str, *, deadline_seconds: float) -> str:
            if address not in self._made:
                return await connect(address, deadline_seconds=deadline_seconds)
            self.dials += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            try:
                await anyio.sleep(deadline_seconds)
            finally:
                self.at_once -= 1
            raise DeadlineError(f"{address}: nobody")

        host.connect = dial  # type: ignore[method-assign]


async def live(host: SimulatedHost, known: Sequence[str]) -> None:
    peering = Peering(host, SWARM, configured=known, remembered=None, random=Random(host.peer_id))
    async with host.run():
        await peering.run()


async def lie(host: SimulatedHost, dead: Dead) -> None:
    PeerExchange(host, SWARM, on_addresses=lambda *_: None, addresses_for=lambda *_: [dead.make() for _ in range(64)])
    async with host.run():
        await anyio.sleep_forever()


async def play(liars: int, arguments: argparse.Namespace) -> tuple[float, Dead]:
    network, dead = SimulatedNetwork(seed=1), Dead(storm=arguments.storm)
    honest = [network.host(f"honest {number}") for number in range(arguments.honest)]
    enemies = [network.host(f"liar {number}") for number in range(liars)]
    newcomer = network.host("newcomer")
    dead.put_behind(newcomer)
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        for host in honest:
            tasks.start_soon(live, host, [] if host is honest[0] else honest[0].addresses())
        for enemy in enemies:
            tasks.start_soon(lie, enemy, dead)
        await anyio.sleep(SETTLE_SECONDS)
        tasks.start_soon(live, newcomer, [a for enemy in enemies for a in enemy.addresses()])
        await anyio.sleep(LIED_TO_SECONDS)
        began_seconds = anyio.current_time()
        await honest[0].connect(newcomer.addresses()[0], deadline_seconds=10.0)
        wanted = {host.peer_id for host in honest}
        with suppress(TimeoutError), anyio.fail_after(LASTS_SECONDS):
            while not wanted <= set(newcomer.peers()):  # noqa: ASYNC110  the host has no event for it
                await anyio.sleep(0.1)
        return anyio.current_time() - began_seconds, dead
    raise AssertionError("unreachable")


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--liars", type=int, default=2)
    parser.add_argument("--honest", type=int, default=6)
    parser.add_argument("--storm", action="store_true", help="all dead addresses are at one IP address")
    arguments = parser.parse_args()
    calm_seconds, _ = in_virtual_time(play, 0, arguments)
    seconds, dead = in_virtual_time(play, arguments.liars, arguments)
    figures = [
        Figure("until all honest nodes are connected, calm", calm_seconds, "s", "lower"),
        Figure("until all honest nodes are connected", seconds, "s", "lower"),
        Figure("dials of dead addresses", dead.dials, "", "lower"),
        Figure("dials of dead addresses at once, at most", dead.most_at_once, "", "lower"),
    ]
    kind = "at one IP address" if arguments.storm else "everywhere"
    report(f"{arguments.liars} liars, dead addresses {kind}", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
