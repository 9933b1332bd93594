"""Decides which peers a relay serves and how much: pure, in seconds of one clock.

A reservation is a place at which a peer can be reached for ``RESERVATION_SECONDS``; it is renewed by reserving again. A
circuit is one connection of another peer to it. Places are bounded over all, by peer and by the network from which
peers come, so that many identities of one stranger cannot take them all. What passes is bounded by circuit, and paced
by the peer with the reservation and over all, so that a relay gives away no more than it decided to.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from swarm.token_bucket import TokenBucket

RESERVATIONS: Final = 256
RESERVATIONS_PER_NETWORK: Final = 16
RESERVATION_SECONDS: Final = 1800.0
CIRCUITS: Final = 256
CIRCUITS_PER_PEER: Final = 16  # at either end
CIRCUIT_SECONDS: Final = 1800.0
CIRCUIT_BYTES: Final = 32 << 20  # both ways together
BYTES_PER_SECOND: Final = 1 << 20  # of all circuits
BURST_BYTES: Final = 16 << 20
PEER_BYTES_PER_SECOND: Final = 64 << 10  # of all circuits to one peer
PEER_BURST_BYTES: Final = 4 << 20


@dataclass(eq=False, slots=True)
class Circuit:
    """A connection that is relayed, or being opened."""

    source: str
    target: str
    ends_at_seconds: float
    left_bytes: int = CIRCUIT_BYTES


@dataclass(slots=True)
class _Reservation:
    network: str
    ends_at_seconds: float
    bytes: TokenBucket


class RelayBook:
    """Reservations and circuits of one relay. ``relayed_bytes`` counts what passed since it was made."""

    def __init__(self) -> None:
        self.relayed_bytes = 0
        self._reservations: dict[str, _Reservation] = {}
        self._circuits: set[Circuit] = set()
        self._ends: Counter[str] = Counter()  # of circuits, by peer
        self._bytes: TokenBucket | None = None

    @property
    def reservations(self) -> int:
        return len(self._reservations)

    @property
    def circuits(self) -> int:
        return len(self._circuits)

    def reserve(self, peer: str, network: str, now_seconds: float) -> bool:
        """Gives ``peer`` a place, or renews it; returns False if there is none."""
        self._expire(now_seconds)
        known = self._reservations.get(peer)
        if known is None:
            of_network = sum(1 for each in self._reservations.values() if each.network == network)
            if len(self._reservations) >= RESERVATIONS or of_network >= RESERVATIONS_PER_NETWORK:
                return False
            bucket = TokenBucket(PEER_BYTES_PER_SECOND, PEER_BURST_BYTES, now_seconds=now_seconds)
            known = self._reservations[peer] = _Reservation(network, 0.0, bucket)
        known.ends_at_seconds = now_seconds + RESERVATION_SECONDS
        return True

    def is_reserved(self, peer: str, now_seconds: float) -> bool:
        self._expire(now_seconds)
        return peer in self._reservations

    def release(self, peer: str) -> None:
        """Ends the reservation of a peer that has disconnected."""
        self._reservations.pop(peer, None)

    def reserved(self) -> list[str]:
        return list(self._reservations)

    def open(self, source: str, target: str, now_seconds: float) -> Circuit | None:
        """Returns a circuit to a peer with a reservation, or None if either end has too many or the relay is full."""
        full = len(self._circuits) >= CIRCUITS
        if full or max(self._ends[source], self._ends[target]) >= CIRCUITS_PER_PEER:
            return None
        circuit = Circuit(source, target, now_seconds + CIRCUIT_SECONDS)
        self._circuits.add(circuit)
        self._ends.update([source, target])
        return circuit

    def close(self, circuit: Circuit) -> None:
        self._circuits.discard(circuit)
        self._ends.subtract([circuit.source, circuit.target])
        self._ends += Counter()  # drops those at zero

    def take(self, circuit: Circuit, size_bytes: int, now_seconds: float) -> float | None:
        """Charges bytes to a circuit; returns the seconds to wait before they pass, or None once its limit is reached
        or its reservation has ended."""
        reservation = self._reservations.get(circuit.target)
        if reservation is None or size_bytes > circuit.left_bytes or now_seconds > circuit.ends_at_seconds:
            return None
        circuit.left_bytes -= size_bytes
        self.relayed_bytes += size_bytes
        if self._bytes is None:
            self._bytes = TokenBucket(BYTES_PER_SECOND, BURST_BYTES, now_seconds=now_seconds)
        return max(bucket.reserve(size_bytes, now_seconds=now_seconds) for bucket in (reservation.bytes, self._bytes))

    def _expire(self, now_seconds: float) -> None:
        self._reservations = {p: r for p, r in self._reservations.items() if r.ends_at_seconds > now_seconds}
