"""Decides when a node asks its router to open a port: pure, in seconds of one clock.

A node asks only if it can gain by it: it has no public IPv4 address, it listens on a private one, and peers cannot dial
it or have not tried. A node that peers can dial, or one with peers on its local network alone, opens nothing to the
internet. A port is renewed at half its time, and at once when peers that tried no longer reach this node: then the
router may have forgotten it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from swarm.address_groups import is_public
from swarm.peers.reachability import Reach
from swarm.router import OpenedPort

LEASE_SECONDS: Final = 3600
START_SECONDS: Final = 10.0  # in which peers may find out that this node can be dialled as it is
RETRY_SECONDS: Final = 60.0  # after the first failure; twice as much after each further one
RETRY_MOST_SECONDS: Final = 3600.0
DOUBT_SECONDS: Final = 600.0  # between two renewals because peers do not reach this node
SHORTEST_LEASE_SECONDS: Final = 120.0  # a router that gives less is asked no more often than if it gave this


@dataclass(frozen=True, slots=True)
class PortState:
    """What the router was asked for, and its answer."""

    opened: OpenedPort | None = None
    opened_at_seconds: float = 0.0
    failures: int = 0  # in a row
    failed_at_seconds: float = 0.0
    failed_with: Mapping[str, int] = field(default_factory=dict)  # the addresses that this node had then
    why: str = ""  # the last failure, in words

    def lease_ends_at(self) -> float:
        lease = self.opened.lease_seconds if self.opened is not None else 0.0
        return self.opened_at_seconds + max(lease, SHORTEST_LEASE_SECONDS)


def why_to_ask(
    now_seconds: float, started_at_seconds: float, state: PortState, reach: Reach, listening: Mapping[str, int]
) -> str | None:
    """Returns the reason to ask the router for a port now, or None."""
    if not listening:
        return None
    if state.failures and state.failed_with == listening:
        backoff = min(RETRY_SECONDS * 2.0 ** min(state.failures - 1, 16), RETRY_MOST_SECONDS)
        if now_seconds - state.failed_at_seconds < backoff:
            return None
    opened = state.opened
    if opened is None:
        is_needed = reach in (Reach.UNKNOWN, Reach.NOWHERE) and now_seconds - started_at_seconds >= START_SECONDS
        return "peers may not be able to dial this node" if is_needed else None
    if listening.get(opened.internal_ip) != opened.internal_port:
        return "this node has another address"
    half = (state.lease_ends_at() - state.opened_at_seconds) / 2
    if now_seconds - state.opened_at_seconds >= half:
        return "half its time is over"
    if reach is Reach.NOWHERE and now_seconds - state.opened_at_seconds >= DOUBT_SECONDS:
        return "peers do not reach this node, though the router opened a port"
    return None


def private_listening(own: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Returns by private IPv4 address the TCP port at which this node listens there; nothing if it has a public one.

    ``own`` are the addresses of this machine at which the node listens.
    """
    found: dict[str, int] = {}
    for ip, port in own:
        try:
            address = ipaddress.IPv4Address(ip)
        except ValueError:
            continue
        if is_public(ip):
            return {}
        if not address.is_loopback and not address.is_link_local:
            found.setdefault(ip, port)
    return found


def port_in_words(state: PortState) -> str:
    """Returns what the router did, for users; empty as long as it was not asked."""
    if state.opened is not None:
        return f"the router opened {state.opened}"
    return f"the router opened no port: {state.why} (its settings may offer UPnP or NAT-PMP)" if state.why else ""
