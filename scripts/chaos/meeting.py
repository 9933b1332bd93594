"""Whether nodes are one swarm, by what their swarm processes answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from protocol.errors import TransportError
from swarm.api import PeerStatus
from swarm.client import SwarmClient

ANSWER_SECONDS: Final = 10.0


def peers_of(homes: Sequence[Path]) -> dict[str, list[PeerStatus]] | None:
    """Returns what each node knows of its peers, by the node's own id; None while a swarm process does not answer."""
    known = {}
    for home in homes:
        with SwarmClient(home / "swarm.sock", timeout_seconds=ANSWER_SECONDS) as client:
            try:
                known[client.status().peer] = client.peers()
            except TransportError:
                return None
    return known


def is_one_swarm(known: Mapping[str, Sequence[PeerStatus]]) -> bool:
    """Whether each node reaches each other one over connections."""
    reached: set[str] = set()
    ahead = [next(iter(known))]
    while ahead:
        peer = ahead.pop()
        if peer not in reached:
            reached.add(peer)
            ahead.extend(other.peer for other in known.get(peer, ()) if other.connected)
    return reached >= known.keys()


def bans(known: Mapping[str, Sequence[PeerStatus]]) -> list[str]:
    """Returns in words who has banned whom."""
    return [
        f"{node} has banned {peer.peer}: {peer.banned_because}"
        for node, peers in known.items()
        for peer in peers
        if peer.banned_because is not None
    ]
