"""The state of the simulated network: delays, losses and bandwidth, and the faults that are in force now.

Peers are known by their ids alone. The hosts ask these conditions; ``SimulatedNetwork`` changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

from swarm.host import PeerId
from swarm.hosts.simulated.simulated_streams import LinkDirection


class NetworkConditions:
    """What decides whether, when and how often bytes arrive.

    ``loss`` is the share of gossiped messages that never arrive; ``duplicates`` the share that arrives a second time,
    after the receiver has forgotten it.
    """

    def __init__(self, seed: int, *, delay_seconds: tuple[float, float], loss: float, duplicates: float) -> None:
        self.delay_seconds = delay_seconds  # shortest and longest, in one direction
        self.names: dict[str, Sequence[str]] = {}  # to which addresses a name leads
        self.is_whole = True  # no partition, and nobody is silent
        self.is_plain = not loss and not duplicates  # gossip takes its delay, and nothing else happens to it
        self._seed = seed
        self._loss = loss
        self._duplicates = duplicates
        self._groups: tuple[frozenset[PeerId], frozenset[PeerId]] | None = None
        self._silent: set[PeerId] = set()
        self._lans: list[frozenset[PeerId]] = []
        self._bytes_per_second: dict[PeerId | None, float] = {}

    # Faults

    def partition(self, group_a: Iterable[PeerId], group_b: Iterable[PeerId]) -> None:
        self._groups = (frozenset(group_a), frozenset(group_b))
        self.is_whole = False

    def silence(self, peer: PeerId) -> None:
        self._silent.add(peer)
        self.is_whole = False

    def heal(self) -> None:
        self._groups = None
        self._silent.clear()
        self.is_whole = True

    def set_bandwidth(self, bytes_per_second: float, *, of: PeerId | None) -> None:
        """Sets the bandwidth of the links of one peer, or of every link."""
        self._bytes_per_second[of] = bytes_per_second
        self.is_plain = False

    def join_lan(self, peers: Iterable[PeerId]) -> None:
        self._lans.append(frozenset(peers))

    # Questions

    def is_partitioned(self, one: PeerId, other: PeerId) -> bool:
        if self._groups is None:
            return False
        a, b = self._groups
        return (one in a and other in b) or (one in b and other in a)

    def is_cut(self, sender: PeerId, receiver: PeerId) -> bool:
        return sender in self._silent or self.is_partitioned(sender, receiver)

    def is_silent(self, peer: PeerId) -> bool:
        return peer in self._silent

    def same_lan(self, peer: PeerId) -> list[PeerId]:
        """The peers whose multicast reaches ``peer``, as far as they run."""
        others = {p for lan in self._lans if peer in lan for p in lan if p != peer}
        return [other for other in sorted(others) if not self.is_cut(other, peer)]

    def direction(
        self,
        sender: PeerId,
        receiver: PeerId,
        *,
        count_sent: Callable[[int], None],
        count_received: Callable[[int], None],
    ) -> LinkDirection:
        """One direction of a new link; its generator is seeded by (seed, sender, receiver)."""
        ends = (sender, receiver)

        def bytes_per_second() -> float | None:
            return min((self._bytes_per_second[e] for e in (None, *ends) if e in self._bytes_per_second), default=None)

        return LinkDirection(
            random=Random(f"{self._seed} {ends}"),
            delay_seconds=self.delay_seconds,
            bytes_per_second=bytes_per_second,
            is_cut=lambda: self.is_cut(*ends),
            count_sent=count_sent,
            count_received=count_received,
        )

    def copies(self, direction: LinkDirection) -> list[bool]:
        """One entry for each time that a gossiped message arrives: whether the receiver has forgotten it by then."""
        copies = [] if direction.random.random() < self._loss else [False]
        return copies + ([True] if copies and direction.random.random() < self._duplicates else [])
