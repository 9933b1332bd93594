"""Relays of the simulated network: places, and which connections run through which relay.

A host behind a router is dialled by nobody. A connection through a relay ends with the relay's connection to either
end. Relayed bytes are not limited, and holes are not punched.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from protocol.errors import UnreachableError
from swarm.host import PeerId, Relaying

PLACE_SECONDS = 1800.0
CIRCUIT = "/p2p-circuit"


class SimulatedRelaying:
    """The part of one host."""

    def __init__(self) -> None:
        self.admits: Callable[[PeerId], bool] | None = None
        self.given: dict[PeerId, float] = {}  # places here, until when
        self.places: dict[PeerId, tuple[str, float]] = {}  # ours, by relay: its address, and until when
        self.through: dict[PeerId, PeerId] = {}  # connected peers, and the relay between

    def give(self, peer: PeerId, here: PeerId) -> float:
        if self.admits is None or not self.admits(peer):
            raise UnreachableError(f"the relay {here} refused: it is no relay for this node")
        self.given[peer] = anyio.current_time() + PLACE_SECONDS
        return PLACE_SECONDS

    def takes(self, source: PeerId, target: PeerId) -> bool:
        """Whether this host, as a relay, connects ``source`` to ``target``."""
        is_admitted = self.admits is not None and self.admits(source)
        return is_admitted and self.given.get(target, 0.0) > anyio.current_time()

    def addresses(self, ourselves: PeerId) -> list[str]:
        if not self.places:
            return []
        now_seconds = anyio.current_time()
        self.places = {relay: place for relay, place in self.places.items() if place[1] > now_seconds}
        return [f"{address}{CIRCUIT}/p2p/{ourselves}" for address, _ in self.places.values()]

    def unlinked(self, peer: PeerId) -> list[PeerId]:
        """Forgets what ran through a peer; returns the peers that are lost with it."""
        self.places.pop(peer, None)
        self.given.pop(peer, None)
        self.through.pop(peer, None)
        return [each for each, relay in self.through.items() if relay == peer]

    def status(self) -> Relaying:
        return Relaying(self.admits is not None, len(self.given), 0, 0, tuple(self.places))
