"""A network in memory: the hosts of a whole swarm in one process, in virtual time, with faults drawn from a seed.

Guarantees. Nothing here reads the wall clock or opens a socket: run it under trio's ``MockClock(autojump_threshold=0)``
and a minute of swarm takes milliseconds. Delays and losses of a link are drawn from a generator of its own, seeded by
(seed, sender, receiver), so that traffic elsewhere does not change them.

Faults: ``partition`` and ``heal``, ``crash`` and ``restart``, ``silence`` (accepts everything, answers nothing),
``set_bandwidth``, gossip that is lost or delivered twice. A cut connection stalls, is noticed as broken after
``DETECTION_SECONDS``, and goes on where it was if it heals before.

Gossip is flooded to all subscribed neighbours, with GossipSub's duties: once per message content within
``SEEN_SECONDS``, validated before it is delivered or forwarded, verdicts counted per forwarding peer in ``scores``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from random import Random

from protocol.identity import NodeKey
from swarm.host import Handshake, PeerId
from swarm.hosts.simulated_host import DETECTION_SECONDS, SEEN_SECONDS, Score, SimulatedHost
from swarm.hosts.simulated_streams import Link, Road

__all__ = ["DETECTION_SECONDS", "SEEN_SECONDS", "Score", "SimulatedHost", "SimulatedNetwork"]


class SimulatedNetwork:
    """Where simulated hosts live. ``duplicates`` is the share of gossip that comes again after it was forgotten."""

    def __init__(
        self,
        seed: int,
        *,
        delay_seconds: tuple[float, float] = (0.01, 0.05),
        loss: float = 0.0,
        duplicates: float = 0.0,
    ) -> None:
        self._seed = seed
        self._delay_seconds = delay_seconds
        self._loss = loss
        self._duplicates = duplicates
        self._hosts: dict[PeerId, SimulatedHost] = {}
        self._numbers: dict[PeerId, int] = {}  # place on the network, kept over restarts
        self._groups: tuple[frozenset[PeerId], frozenset[PeerId]] | None = None
        self._silent: set[PeerId] = set()
        self._lans: list[frozenset[PeerId]] = []
        self._bytes_per_second: dict[PeerId | None, float] = {}

    def host(self, name: str | NodeKey, handshake: Handshake | None = None) -> SimulatedHost:
        """A new host; a name stands for the key derived from it and the seed. One living host a key."""
        key = self._key(name) if isinstance(name, str) else name
        if key.peer_id in self._hosts and not self._hosts[key.peer_id].has_ended:
            raise ValueError(f"{key.peer_id} is on this network already; crash it or leave its run() first")
        number = self._numbers.setdefault(key.peer_id, len(self._numbers) + 1)
        host = SimulatedHost(
            self, key, f"/ip4/10.0.{number // 256}.{number % 256}/tcp/4001/p2p/{key.peer_id}", handshake
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
        self._groups = (frozenset(h.peer_id for h in group_a), frozenset(h.peer_id for h in group_b))
        for host in self._hosts.values():
            host.notice_cut_links()

    def silence(self, host: SimulatedHost) -> None:
        """The host goes on accepting connections and streams, and nothing from it arrives until ``heal``."""
        self._silent.add(host.peer_id)

    def heal(self) -> None:
        """Ends the partition and all silences. What was held back arrives."""
        self._groups = None
        self._silent.clear()
        for host in self._hosts.values():
            host.wake()

    def crash(self, host: SimulatedHost) -> None:
        """As ``kill -9``: cancels the body of its ``run()``; its peers see their connections reset."""
        host.end("crashed")

    def restart(self, host: SimulatedHost) -> SimulatedHost:
        """A fresh host with the key and address of one that ended. As a new process, it remembers nothing."""
        return self.host(host.key, host.handshake)

    def set_bandwidth(self, bytes_per_second: float, *, of: SimulatedHost | None = None) -> None:
        """Bandwidth of every link, or of the links of one host, in either direction. The lower one holds."""
        if not bytes_per_second > 0:
            raise ValueError(f"bandwidth of {bytes_per_second} bytes per second; partition() stops a link")
        self._bytes_per_second[of.peer_id if of else None] = bytes_per_second

    def join_lan(self, *hosts: SimulatedHost) -> None:
        """From now on these hear each other's multicast."""
        self._lans.append(frozenset(h.peer_id for h in hosts))

    # What hosts ask of their network

    def is_partitioned(self, one: PeerId, other: PeerId) -> bool:
        if self._groups is None:
            return False
        a, b = self._groups
        return (one in a and other in b) or (one in b and other in a)

    def is_cut(self, sender: PeerId, receiver: PeerId) -> bool:
        return sender in self._silent or self.is_partitioned(sender, receiver)

    def is_silent(self, peer: PeerId) -> bool:
        return peer in self._silent

    def running(self, peer: PeerId) -> SimulatedHost | None:
        host = self._hosts.get(peer)
        return host if host is not None and host.is_running else None

    def same_lan(self, peer: PeerId) -> Iterator[SimulatedHost]:
        for other in sorted({p for lan in self._lans if peer in lan for p in lan if p != peer}):
            host = self.running(other)
            if host is not None and not self.is_cut(other, peer):
                yield host

    def component(self, peer: PeerId) -> list[SimulatedHost]:
        """The running hosts that ``peer`` reaches over connections that carry, itself among them."""
        reached, frontier = {peer}, [peer]
        while frontier:
            here = frontier.pop()
            for there in self._hosts[here].peers():
                if there not in reached and not self.is_cut(there, here):
                    reached.add(there)
                    frontier.append(there)
        return [self._hosts[p] for p in sorted(reached)]

    def link(self, one: SimulatedHost, other: SimulatedHost) -> Link:
        roads = {a.peer_id: self._road(a, b) for a, b in ((one, other), (other, one))}
        return Link(roads, round_trip_seconds=sum(road.delay() for road in roads.values()))

    def _road(self, sender: SimulatedHost, receiver: SimulatedHost) -> Road:
        ends = (sender.peer_id, receiver.peer_id)

        def bytes_per_second() -> float | None:
            return min((self._bytes_per_second[e] for e in (None, *ends) if e in self._bytes_per_second), default=None)

        return Road(
            random=Random(f"{self._seed} {ends}"),
            delay_seconds=self._delay_seconds,
            bytes_per_second=bytes_per_second,
            is_cut=lambda: self.is_cut(*ends),
            count_sent=sender.count_sent,
            count_received=receiver.count_received,
        )

    def copies(self, road: Road) -> list[bool]:
        """One entry for each time that a gossiped message arrives; whether the receiver has forgotten it by then."""
        copies = [] if road.random.random() < self._loss else [False]
        return copies + ([True] if copies and road.random.random() < self._duplicates else [])
