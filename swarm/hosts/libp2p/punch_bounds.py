"""Decides at which addresses a hole may be punched, and how often: pure, in seconds of one clock.

A peer says where it can be met, and that may be anybody's address. So only the IP address counts at which the relay,
over which both are connected, sees that peer itself; few addresses of one peer are dialled, and one IP address and all
together seldom.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from swarm.address_groups import is_public
from swarm.token_bucket import TokenBuckets

ADDRESSES: Final = 2  # dialled of one peer at once
DIALS_PER_IP: Final = 12
DIALS_PER_IP_EVERY_SECONDS: Final = 120.0
DIALS: Final = 64
DIALS_EVERY_SECONDS: Final = 5.0
IPS: Final = 256  # remembered

SocketAddress = tuple[str, int]


def punchable(claimed: Sequence[SocketAddress], seen_at: SocketAddress | None) -> list[SocketAddress]:
    """Returns what to dial: ports that the peer claims at the IP address where the relay sees it, then what it sees."""
    if seen_at is None or not is_public(seen_at[0]):
        return []
    same_ip = [(ip, port) for ip, port in claimed if ip == seen_at[0] and 0 < port < 65536]
    return list(dict.fromkeys([*same_ip[: ADDRESSES - 1], seen_at]))


class PunchBounds:
    """``take`` says whether one more dial of an IP address is allowed."""

    def __init__(self) -> None:
        self._all: TokenBuckets[str] = TokenBuckets(1 / DIALS_EVERY_SECONDS, DIALS, 1)
        self._of_ip: TokenBuckets[str] = TokenBuckets(1 / DIALS_PER_IP_EVERY_SECONDS, DIALS_PER_IP, IPS)

    def take(self, ip: str, now_seconds: float) -> bool:
        return self._of_ip.take(ip, now_seconds=now_seconds) and self._all.take("", now_seconds=now_seconds)
