"""Decides which peers to dial, when and why, as pure functions. ``peering.py`` carries the decisions out.

A node starts with the addresses that it was given (``--peer``), that it remembers, and that it hears on the local
network; each peer that it reaches sends the addresses of others. An address that fails is tried again after 1, 2, 4, …
seconds, at most ``MAX_BACKOFF_SECONDS``, times a random factor from ½ to 1½, so that the nodes of a swarm that lost one
peer do not all dial it at the same time. An address is dropped only for lack of room, the least promising first, so
that swarms that started apart or were partitioned find each other again. Times are seconds of one clock; nothing here
reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from random import Random

from protocol.limits import ADDRESS_CHARACTERS, ADDRESSES_PER_PEER

BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 120.0
ADDRESSES = 2048
SIMULTANEOUS_DIAL_SECONDS = 3.0  # two peers that learn of each other at once must not both dial: the greater id waits
DEPARTED_SECONDS = 30.0  # for which a peer that said goodbye is not dialled


class AddressSource(IntEnum):
    """How the node learned an address, the most reliable source first."""

    CONFIGURED = 0
    LAN = 1
    REMEMBERED = 2
    DHT = 3
    PEER = 4  # sent by a peer


@dataclass(frozen=True, slots=True)
class Candidate:
    """One address, and the results of dialling it."""

    address: str
    source: AddressSource
    failures: int = 0  # in a row
    not_before_seconds: float = 0.0
    failed_because: str = ""
    reached_at_seconds: float | None = None

    @property
    def peer(self) -> str:
        return self.address.rpartition("/p2p/")[2]


@dataclass(frozen=True, slots=True)
class DiscoveryConfig:
    peers_wanted: int = 8  # below this number every known peer is dialled; configured peers always are
    dials_at_once: int = 8


@dataclass(frozen=True, slots=True)
class Dial:
    address: str
    why: str


def is_dialable(address: str) -> bool:
    """Whether a string received from a peer has the form of an address: bounded, printable, ending in a peer id."""
    if not (address.startswith("/") and len(address) <= ADDRESS_CHARACTERS and address.isascii()):
        return False
    route, separator, peer = address.rpartition("/p2p/")
    return bool(separator) and peer.isalnum() and "/tcp/" in route and address.isprintable() and " " not in address


def next_dials(
    now_seconds: float,
    candidates: Iterable[Candidate],
    *,
    ourselves: str,
    connected: Collection[str],
    dialling: Collection[str],
    refused: Collection[str],
    config: DiscoveryConfig,
) -> list[Dial]:
    """Returns the addresses to dial now, one per peer; ``refused`` peers are banned or have just left."""
    room = config.dials_at_once - len(dialling)
    short = config.peers_wanted - len(connected) - len(dialling)
    dials: dict[str, Dial] = {}
    for candidate in sorted(candidates, key=lambda c: (c.source is not AddressSource.CONFIGURED, c.failures, c.source)):
        peer = candidate.peer
        if peer == ourselves or peer in connected or peer in dialling or peer in refused or peer in dials:
            continue
        if candidate.not_before_seconds > now_seconds:
            continue
        if len(dials) >= room:
            break
        if candidate.source is AddressSource.CONFIGURED:
            dials[peer] = Dial(candidate.address, "configured")
        elif len(dials) < short:
            why = f"{candidate.source.name.lower()}; {len(connected)} of {config.peers_wanted} peers connected"
            dials[peer] = Dial(candidate.address, why)
    return list(dials.values())


def after_failure(candidate: Candidate, now_seconds: float, because: str, random: Random) -> Candidate:
    """Returns the candidate with a later next attempt."""
    wait_seconds = min(BACKOFF_SECONDS * 2.0 ** min(candidate.failures, 16), MAX_BACKOFF_SECONDS)
    return replace(
        candidate,
        failures=candidate.failures + 1,
        not_before_seconds=now_seconds + wait_seconds * random.uniform(0.5, 1.5),
        failed_because=because,
    )


def after_success(candidate: Candidate, now_seconds: float) -> Candidate:
    """Returns the candidate without its failures: if the connection is lost, it is dialled again without backoff."""
    return replace(
        candidate,
        failures=0,
        not_before_seconds=now_seconds + BACKOFF_SECONDS,
        failed_because="",
        reached_at_seconds=now_seconds,
    )


def why_alone(now_seconds: float, candidates: Collection[Candidate], *, dialling: Collection[str], on_lan: bool) -> str:
    """Returns why no peer is connected: what was tried, how it failed, and when the node tries next.

    ``on_lan``: the node also asks the local network."""
    if not candidates:
        listening = "listening, and asking the local network" if on_lan else "listening; LAN discovery is off"
        return f"no address of a peer is known: give one with --peer; {listening}"
    if dialling:
        trying = next((c.address for c in candidates if c.peer in dialling), "")
        return f"{len(candidates)} addresses known; dialling {trying} now"
    failed = [c for c in candidates if c.failures]
    next_seconds = max(0.0, min(c.not_before_seconds for c in candidates) - now_seconds)
    if not failed:
        return f"{len(candidates)} addresses known, none dialled yet; next try in {next_seconds:.0f} s"
    last = max(failed, key=lambda c: (c.source is AddressSource.CONFIGURED, c.not_before_seconds))
    tried = f"tried {len(failed)} of {len(candidates)} known addresses"
    return f"{tried}, among them {last.address} ({last.failed_because}); next try in {next_seconds:.0f} s"


class AddressBook:
    """At most ``ADDRESSES`` candidates, ``ADDRESSES_PER_PEER`` of one peer."""

    def __init__(self) -> None:
        self._of_peer: dict[str, dict[str, Candidate]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def candidates(self) -> list[Candidate]:
        return [c for of_peer in self._of_peer.values() for c in of_peer.values()]

    def of(self, peer: str) -> list[Candidate]:
        """Returns the peer's addresses, the most promising first."""
        return sorted(self._of_peer.get(peer, {}).values(), key=lambda c: (c.failures, c.source))

    def add(self, address: str, source: AddressSource, *, not_before_seconds: float = 0.0) -> bool:
        """Adds an address; returns False if it is malformed, or less promising than all others and there is no room."""
        if not is_dialable(address):
            return False
        candidate = Candidate(address, source, not_before_seconds=not_before_seconds)
        of_peer = self._of_peer.get(candidate.peer, {})
        known = of_peer.get(address)
        if known is not None:
            if source < known.source:
                of_peer[address] = replace(known, source=source)
            return True
        if len(of_peer) >= ADDRESSES_PER_PEER and not self._drop_worst(of_peer.values(), candidate):
            return False
        if self._count >= ADDRESSES and not self._drop_worst(self.candidates(), candidate):
            return False
        self._of_peer.setdefault(candidate.peer, {})[address] = candidate
        self._count += 1
        return True

    def update(self, candidate: Candidate) -> None:
        """Replaces a candidate after a dial; does nothing if the address was dropped meanwhile."""
        if candidate.address in self._of_peer.get(candidate.peer, {}):
            self._of_peer[candidate.peer][candidate.address] = candidate

    def drop(self, address: str) -> None:
        peer = Candidate(address, AddressSource.PEER).peer
        if self._of_peer.get(peer, {}).pop(address, None) is not None:
            self._count -= 1
            if not self._of_peer[peer]:
                del self._of_peer[peer]

    def _drop_worst(self, among: Iterable[Candidate], newcomer: Candidate) -> bool:
        """Drops the worst candidate, unless it is configured or the newcomer is worse; returns whether it did.

        An address that was reached is never worse than one that was not.
        """

        def badness(candidate: Candidate) -> tuple[bool, int, int]:
            return candidate.reached_at_seconds is None, candidate.failures, candidate.source

        worst = max(among, key=badness)
        if worst.source is AddressSource.CONFIGURED or badness(worst) < badness(newcomer):
            return False
        self.drop(worst.address)
        return True
