"""Decides which peers to dial, when and why, as pure functions. ``peering.py`` carries the decisions out.

A node starts with the addresses that it was given (``--peer``), that it remembers, and that it hears on the local
network; each peer that it reaches sends the addresses of others. An address that fails is tried again after 1, 2, 4, …
seconds, at most ``MAX_BACKOFF_SECONDS``, times a random factor from ½ to 1½, so that the nodes of a swarm that lost one
peer do not all dial it at the same time. An address is dropped only for lack of room, the least promising first, so
that swarms that started apart or were partitioned find each other again. Times are seconds of one clock; nothing here
reads it.

Addresses are hearsay. A peer that sends dead ones is doubted: the more of its addresses failed, the later its others
are dialled and the sooner they are dropped. Networks that have few of our connections are dialled before those that
have many, and one IP address is dialled ``DIALS_PER_IP`` times at once at most, so that nodes that were sent the
address of somebody who has nothing to do with the swarm do not become a weapon.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from random import Random
from types import MappingProxyType

from protocol.limits import ADDRESS_CHARACTERS, ADDRESSES_PER_PEER
from swarm.address_groups import Groups, groups_of, is_public

BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 120.0
ADDRESSES = 2048
ADDRESSES_PER_TELLER = 256  # that one peer sent and that were never reached
RANKED_AT_ONCE = 16  # addresses to drop from a full book: to rank all of them for each newcomer takes long
DIALS_PER_IP = 2  # at once, of addresses that are not configured
SIMULTANEOUS_DIAL_SECONDS = 3.0  # two peers that learn of each other at once must not both dial: the greater id waits
CIRCUIT = "/p2p-circuit/"  # in an address through a relay
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
    teller: str = ""  # the peer that sent the address; empty if none did

    @property
    def groups(self) -> Groups:
        return groups_of(self.address.split("/")[2])

    @property
    def is_relayed(self) -> bool:
        return CIRCUIT in self.address

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
    """Whether a string has the form of an address that is dialled: bounded, printable, an IP address and a port over
    TCP, ending in a peer id. A name is none: whoever sends a thousand of them would choose what is looked up, and where
    they all lead."""
    if not (address.startswith(("/ip4/", "/ip6/")) and len(address) <= ADDRESS_CHARACTERS and address.isascii()):
        return False
    route, separator, peer = address.rpartition("/p2p/")
    if address.count(CIRCUIT.rstrip("/")) > 1 or (CIRCUIT in address and not route.endswith(CIRCUIT.rstrip("/"))):
        return False  # through one relay at most
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
    dialled_us: Collection[str] = (),
    networks: Iterable[Groups] = (),
    doubts: Mapping[str, int] = MappingProxyType({}),
    not_counted: int = 0,
) -> list[Dial]:
    """Returns the addresses to dial now, one per peer; ``refused`` peers are banned or have just left.

    ``dialled_us`` are connected strangers that chose us. They count for half of the peers wanted at most: otherwise a
    few identities of one stranger, who dial first, would be all the peers that this node ever has. ``not_counted``
    connected peers are of no use and count not at all. ``networks`` are those of the connected peers; ``doubts`` counts
    dead addresses by the peer that sent them. A promising address that waits for its peer to dial first keeps its place
    among those wanted: otherwise half of the best addresses, which all come at once, would lose it to whatever else
    came with them.
    """
    room = config.dials_at_once - len(dialling)
    short = peers_short(len(connected) - not_counted, len(dialled_us), config) - len(dialling)
    crowd = Counter(network for network, _ in networks)
    candidates = list(candidates)
    at_ip = Counter(c.groups[1] for c in candidates if c.peer in dialling)
    away = {ourselves, *connected, *dialling, *refused}
    due = [c for c in candidates if c.not_before_seconds <= now_seconds or _waits_for_peer(c, now_seconds)]
    due = [c for c in due if c.peer not in away]
    if short <= 0:
        due = [c for c in due if c.source is AddressSource.CONFIGURED]
    relayed = {c.peer for c in due if c.is_relayed}
    dials: dict[str, Dial] = {}
    while len(dials) < room:
        due = [
            c
            for c in due
            if c.peer not in dials and (c.source is AddressSource.CONFIGURED or at_ip[c.groups[1]] < DIALS_PER_IP)
        ]
        if not due:
            break
        best = min(
            due,
            key=lambda c: (
                c.source is not AddressSource.CONFIGURED,
                c.failures + doubt_of(doubts.get(c.teller, 0)),
                detour(c, relayed),
                c.source >= AddressSource.DHT,  # hearsay
                crowd[c.groups[0]],
                c.source,
            ),
        )
        if best.not_before_seconds > now_seconds:  # in a moment, unless it dials us: its place is kept
            due = [c for c in due if c.peer != best.peer]
            short -= best.source is not AddressSource.CONFIGURED
            continue
        if best.source is AddressSource.CONFIGURED:
            dials[best.peer] = Dial(best.address, "configured")
        elif len(dials) >= short:
            break
        else:
            why = f"{best.source.name.lower()}; {len(connected)} of {config.peers_wanted} peers connected"
            dials[best.peer] = Dial(best.address, why)
        at_ip[best.groups[1]] += 1
        crowd[best.groups[0]] += 1
    return list(dials.values())


def detour(candidate: Candidate, relayed: Collection[str]) -> int:
    """Returns 0 for an address to try first, 1 for one through a relay, and 2 for the private address of a peer that is
    also reached through a relay: it is behind a router, most likely another one than ours."""
    if candidate.is_relayed:
        return 1
    return 2 if candidate.peer in relayed and not is_public(candidate.address.split("/")[2]) else 0


def _waits_for_peer(candidate: Candidate, now_seconds: float) -> bool:
    is_untried = not candidate.failures and candidate.reached_at_seconds is None
    return is_untried and candidate.not_before_seconds - now_seconds <= SIMULTANEOUS_DIAL_SECONDS


def peers_short(connected: int, dialled_us: int, config: DiscoveryConfig) -> int:
    """Returns how many peers are wanted beyond the connected ones; ``dialled_us`` of these are strangers that chose
    us, and count for half of the peers wanted at most."""
    return config.peers_wanted - (connected - dialled_us) - min(dialled_us, config.peers_wanted // 2)


def doubt_of(dead: int) -> int:
    """Returns how many failures of its own an address starts with whose teller sent so many ``dead`` ones."""
    return dead.bit_length() if dead > 0 else 0


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
        among = f", one of {len(candidates)} known addresses" if len(candidates) > 1 else ""
        return f"calling {trying} now{among}"
    failed = [c for c in candidates if c.failures]
    next_seconds = max(0.0, min(c.not_before_seconds for c in candidates) - now_seconds)
    if not failed:
        known = "one address is" if len(candidates) == 1 else f"{len(candidates)} addresses are"
        return f"{known} known and not tried yet; the next try is in {next_seconds:.0f} s"
    last = max(failed, key=lambda c: (c.source is AddressSource.CONFIGURED, c.not_before_seconds))
    if len(candidates) == 1:
        tried = "nobody answers at the only known address,"
    else:
        tried = f"nobody answers at {len(failed)} of {len(candidates)} known addresses, such as"
    return f"{tried} {last.address} ({last.failed_because}); the next try is in {next_seconds:.0f} s"


class AddressBook:
    """At most ``ADDRESSES`` candidates, ``ADDRESSES_PER_PEER`` of one peer, ``ADDRESSES_PER_TELLER`` from one teller.

    ``doubts`` counts by teller the addresses that failed and were never reached, less those that were reached.
    """

    def __init__(self) -> None:
        self.doubts: Counter[str] = Counter()
        self._of_peer: dict[str, dict[str, Candidate]] = {}
        self._configured: set[str] = set()  # addresses, which are never dropped
        self._of_teller: Counter[str] = Counter()
        self._count = 0
        self._worst: list[Candidate] = []  # of the whole book when they were last ranked, the worst last

    def __len__(self) -> int:
        return self._count

    def candidates(self) -> list[Candidate]:
        return [c for of_peer in self._of_peer.values() for c in of_peer.values()]

    def configured(self) -> list[Candidate]:
        return [c for c in map(self._known, self._configured) if c is not None]

    def of(self, peer: str) -> list[Candidate]:
        """Returns the peer's addresses, the most promising first."""
        return sorted(self._of_peer.get(peer, {}).values(), key=lambda c: (c.failures, c.source))

    def add(self, address: str, source: AddressSource, *, not_before_seconds: float = 0.0, teller: str = "") -> bool:
        """Adds an address; returns False if it is malformed, or less promising than all others and there is no room."""
        if not is_dialable(address):
            return False
        candidate = Candidate(address, source, not_before_seconds=not_before_seconds, teller=teller)
        if source is AddressSource.CONFIGURED:
            self._configured.add(address)
        of_peer = self._of_peer.get(candidate.peer, {})
        known = of_peer.get(address)
        if known is not None:
            if source < known.source:
                of_peer[address] = replace(known, source=source)
            return True
        if teller and self._of_teller[teller] >= ADDRESSES_PER_TELLER:
            return False
        if len(of_peer) >= ADDRESSES_PER_PEER and not self._drop_worst(of_peer.values(), candidate):
            return False
        if self._count >= ADDRESSES and not self._drop_worst(self._ranked_worst(), candidate):
            return False
        self._of_peer.setdefault(candidate.peer, {})[address] = candidate
        self._of_teller[teller] += 1
        self._count += 1
        return True

    def update(self, candidate: Candidate) -> None:
        """Replaces a candidate after a dial; does nothing if the address was dropped meanwhile."""
        known = self._of_peer.get(candidate.peer, {}).get(candidate.address)
        if known is None:
            return
        self._of_peer[candidate.peer][candidate.address] = candidate
        self._worst.clear()
        if candidate.teller and candidate.reached_at_seconds is None and known.failures == 0 < candidate.failures:
            self.doubts[candidate.teller] += 1
        elif candidate.teller and candidate.reached_at_seconds is not None and known.reached_at_seconds is None:
            self.doubts[candidate.teller] -= 1

    def release(self, address: str) -> None:
        """Lets a configured address be dropped like others, since its name leads elsewhere now."""
        known = self._known(address)
        self._configured.discard(address)
        if known is not None:
            self.update(replace(known, source=AddressSource.REMEMBERED))

    def drop(self, address: str) -> None:
        peer = Candidate(address, AddressSource.PEER).peer
        dropped = self._of_peer.get(peer, {}).pop(address, None)
        if dropped is None:
            return
        self._count -= 1
        self._of_teller[dropped.teller] -= 1
        if not self._of_teller[dropped.teller]:
            del self._of_teller[dropped.teller]
            del self.doubts[dropped.teller]
        if not self._of_peer[peer]:
            del self._of_peer[peer]

    def _ranked_worst(self) -> list[Candidate]:
        """Returns the worst candidate of the whole book, as it was ranked at most ``RANKED_AT_ONCE`` drops ago."""
        while self._worst and self._known(self._worst[-1].address) is not self._worst[-1]:
            self._worst.pop()
        if not self._worst:
            self._worst = heapq.nlargest(RANKED_AT_ONCE, self.candidates(), key=self._badness)[::-1]
        return self._worst[-1:]

    def _known(self, address: str) -> Candidate | None:
        return self._of_peer.get(Candidate(address, AddressSource.PEER).peer, {}).get(address)

    def _badness(self, candidate: Candidate) -> tuple[bool, int, int, int]:
        failures = candidate.failures + doubt_of(self.doubts[candidate.teller])
        crowd = self._of_teller[candidate.teller] if candidate.teller else 0
        return candidate.reached_at_seconds is None, failures, candidate.source, crowd

    def _drop_worst(self, among: Iterable[Candidate], newcomer: Candidate) -> bool:
        """Drops the worst candidate, unless it is configured or the newcomer is worse; returns whether it did.

        An address that was reached is never worse than one that was not. Of others alike, those leave first whose
        teller has the most in the book.
        """
        worst = max(among, key=self._badness)
        if worst.source is AddressSource.CONFIGURED or self._badness(worst) < self._badness(newcomer):
            return False
        self.drop(worst.address)
        return True
