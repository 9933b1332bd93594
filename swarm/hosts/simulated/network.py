"""A network in memory: the hosts of a whole swarm in one process, in virtual time, with faults drawn from a seed.

Guarantees: nothing here reads the wall clock or opens a socket. Under trio's ``MockClock(autojump_threshold=0)`` a
minute of a swarm takes milliseconds. Delays and losses of a link are drawn from a generator of its own, seeded by
(seed, sender, receiver), so that traffic elsewhere does not change them.

Faults: ``partition`` and ``heal``, ``crash`` and ``restart``, ``silence`` (the host accepts everything and answers
nothing), ``set_bandwidth``, gossip that is lost or delivered twice. A cut connection stalls; it breaks after
``DETECTION_SECONDS``, and continues where it stopped if the partition heals before.

Gossip goes to all subscribed neighbours, or with ``mesh_degree`` to those of a mesh, with GossipSub's duties
(``flooding.py``); verdicts are counted per forwarding peer in ``scores``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from random import Random

from protocol.identity import NodeKey
from swarm.host import Handshake, PeerId
from swarm.hosts.simulated.conditions import NetworkConditions
from swarm.hosts.simulated.flooding import SEEN_SECONDS, GossipFlood
from swarm.hosts.simulated.gossip_ends import Score
from swarm.hosts.simulated.gossip_mesh import GossipMesh
from swarm.hosts.simulated.simulated_connections import DETECTION_SECONDS
from swarm.hosts.simulated.simulated_host import SimulatedHost

__all__ = ["DETECTION_SECONDS", "SEEN_SECONDS", "Score", "SimulatedHost", "SimulatedNetwork"]


class SimulatedNetwork:
    """Makes simulated hosts, and the faults that they meet.

    ``delay_seconds`` are the shortest and the longest delay in one direction, ``loss`` the share of gossiped messages
    that never arrive, ``duplicates`` the share that arrives a second time after it was forgotten. ``mesh_degree`` is
    the number of neighbours to which a host forwards gossip, about, or None for all.
    """

    def __init__(
        self,
        seed: int,
        *,
        delay_seconds: tuple[float, float] = (0.01, 0.05),
        loss: float = 0.0,
        duplicates: float = 0.0,
        mesh_degree: int | None = None,
    ) -> None:
        self._seed = seed
        self._conditions = NetworkConditions(seed, delay_seconds=delay_seconds, loss=loss, duplicates=duplicates)
        self._flood = GossipFlood(self._conditions, GossipMesh(mesh_degree, Random(seed)))
        self._hosts: dict[PeerId, SimulatedHost] = {}
        self._numbers: dict[PeerId, int] = {}  # place on the network, kept over restarts

    def host(
        self,
        name: str | NodeKey,
        handshake: Handshake | None = None,
        *,
        place: int | None = None,
        can_be_dialled: bool = True,
    ) -> SimulatedHost:
        """A new host; a name stands for the key derived from it and the seed. A key has one running host at a time.

        Its IP address is 10.0.x.y with x, y = divmod(place, 256); by default places are counted from 1. One that
        cannot be dialled drops what comes, as a router does.
        """
        key = self._key(name) if isinstance(name, str) else name
        if key.peer_id in self._hosts and not self._hosts[key.peer_id].has_ended:
            raise ValueError(f"{key.peer_id} is on this network already; crash it or leave its run() first")
        number = self._numbers.setdefault(key.peer_id, len(self._numbers) + 1 if place is None else place)
        address = f"/ip4/10.0.{number // 256}.{number % 256}/tcp/4001/p2p/{key.peer_id}"
        host = SimulatedHost(
            key, address, self._conditions, self._hosts, self._flood, handshake, can_be_dialled=can_be_dialled
        )
        self._hosts[key.peer_id] = host
        return host

    def hosts(self) -> list[SimulatedHost]:
        """All hosts made so far, the newest of each key."""
        return list(self._hosts.values())

    def _key(self, name: str) -> NodeKey:
        return NodeKey(sha256(f"simulated host {self._seed} {name}".encode()).digest())

    # Faults

    def partition(self, group_a: Iterable[SimulatedHost], group_b: Iterable[SimulatedHost]) -> None:
        """Nothing passes between the groups until ``heal``. A host in neither group reaches both."""
        self._conditions.partition((h.peer_id for h in group_a), (h.peer_id for h in group_b))
        for host in self._hosts.values():
            host.give_up_cut_links()

    def silence(self, host: SimulatedHost) -> None:
        """The host still accepts connections and streams; nothing that it sends arrives until ``heal``."""
        self._conditions.silence(host.peer_id)

    def heal(self) -> None:
        """Ends the partition and all silences. What was held back arrives."""
        self._conditions.heal()
        for host in self._hosts.values():
            host.wake()

    def crash(self, host: SimulatedHost) -> None:
        """As ``kill -9``: cancels the body of its ``run()``; its peers see their connections reset."""
        host.end("crashed")

    def restart(self, host: SimulatedHost) -> SimulatedHost:
        """A fresh host with the key and address of one that ended. As a new process, it remembers nothing."""
        return self.host(host.key, host.handshake)

    def set_bandwidth(self, bytes_per_second: float, *, of: SimulatedHost | None = None) -> None:
        """Bandwidth of every link, or of the links of one host, in either direction. The lowest one holds."""
        if not bytes_per_second > 0:
            raise ValueError(f"bandwidth of {bytes_per_second} bytes per second; partition() stops a link")
        self._conditions.set_bandwidth(bytes_per_second, of=of.peer_id if of else None)

    def name(self, name: str, addresses: Sequence[str]) -> None:
        """From now on the name leads to these addresses."""
        self._conditions.names[name] = addresses

    def join_lan(self, *hosts: SimulatedHost) -> None:
        """From now on these hosts hear each other's multicast."""
        self._conditions.join_lan(h.peer_id for h in hosts)
