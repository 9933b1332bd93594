"""What any libp2p host must offer to the swarm, whichever implementation stands beneath.

Two implementations live in ``swarm.hosts``: ``libp2p`` (real sockets) and ``simulated`` (in memory, virtual time,
faults). One set of conformance tests runs against both. Written against anyio; every call that waits for a peer has a
deadline.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from protocol.cluster.refusal import AdmissionRefused
from protocol.errors import RefusedError

PeerId = str  # libp2p peer id, base58btc, "12D3Koo…"
Address = str  # multiaddr ending in /p2p/<peer id>


class GossipVerdict(Enum):
    """What a validator says of a gossiped message; it reaches the host's peer scoring."""

    ACCEPT = "accept"  # deliver and forward
    IGNORE = "ignore"  # neither deliver nor forward; nobody's fault
    REJECT = "reject"  # neither, and the peer that forwarded it loses score


Validator = Callable[
    [PeerId, bytes], GossipVerdict
]  # (peer that forwarded it, message) -> verdict; synchronous and quick
Receiver = Callable[[PeerId, bytes], None]  # called once for every accepted message of others; must not block


class Stream(Protocol):
    """A reliable, ordered, two-way byte stream to one peer. Not for concurrent use in one direction."""

    @property
    def peer(self) -> PeerId: ...

    async def send(self, payload: bytes) -> None:
        """Sends all of it. Raises ``UnreachableError`` once the peer is gone."""

    async def receive(self, max_bytes: int) -> bytes:
        """1 to ``max_bytes`` bytes, or ``b""`` at the peer's end of stream. Raises ``UnreachableError``."""

    async def close(self) -> None:
        """Ends our direction; the peer reads what was sent, then ``b""``."""

    async def reset(self) -> None:
        """Drops both directions at once."""

    async def finish(self, *, linger_seconds: float) -> None:
        """Closes, discards what the peer still sends until it has ended its direction, and lets go of the stream; of
        one whose peer takes longer, by a reset. Whoever opened a stream ends it with this or with ``reset``."""


StreamHandler = Callable[[Stream], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Said:
    """What goes to the other side, nothing if empty, and whether it or we end the connection."""

    frame: bytes
    refused: RefusedError | None = None


class Handshake(Protocol):
    """Who may connect to a host of a private cluster; ``swarm.cluster.handshake`` says what passes. A host without one
    is open.

    All of it is synchronous and quick. ``greet`` and ``conclude`` are the dialling side's, ``answer`` and ``confirm``
    the other's. What cannot be decoded raises ``ProtocolError``.
    """

    def keys(self) -> Sequence[bytes]:
        """Pre-shared keys of the transport, 32 bytes each: the one that we use, then those that we still accept."""

    def greet(self, peer: PeerId) -> bytes: ...

    def answer(self, peer: PeerId, greeting: bytes) -> Said: ...

    def conclude(self, peer: PeerId, answer: bytes) -> Said: ...

    def confirm(self, peer: PeerId, conclusion: bytes) -> None:
        """Raises ``RefusedError``."""

    def refusal(self, peer: PeerId) -> AdmissionRefused | None:
        """Why nothing of ``peer`` is to be used now; asked for every stream and every announcement."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that went over the transport since start, as far as the host can count them."""

    sent_bytes: int
    received_bytes: int


class Host(Protocol):
    """One peer's presence in the network. ``async with host.run():`` brings it up and takes it down again."""

    @property
    def peer_id(self) -> PeerId: ...

    def run(self) -> AbstractAsyncContextManager[None]:
        """Listens from entry to exit. Raises ``TransportError`` naming the address if the port is in use."""

    def addresses(self) -> Sequence[Address]:
        """Where others can dial this host, each ending in /p2p/<peer id>."""

    def peers(self) -> Sequence[PeerId]:
        """Peers connected now."""

    def heard_on_lan(self) -> Sequence[Address]:
        """Addresses of peers heard by multicast on the local network; empty where LAN discovery is off."""

    def traffic(self) -> Traffic: ...

    def round_trip_seconds(self, peer: PeerId) -> float | None:
        """The last measured round trip to a connected peer; None before the first."""

    async def connect(self, address: Address, *, deadline_seconds: float) -> PeerId:
        """Dials; returns at once if connected. Raises ``UnreachableError`` or ``DeadlineError``."""

    async def disconnect(self, peer: PeerId) -> None: ...

    def block(self, peer: PeerId) -> None:
        """Refuses connections and gossip from a banned peer until the process ends."""

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serves ``protocol``; each incoming stream runs its handler in its own task and is reset when that raises.

        A ``StarlingError`` from a handler is the peer's failure and is counted; any other exception is our bug and is
        raised out of ``run``.
        """

    async def open_stream(self, peer: PeerId, protocol: str, *, deadline_seconds: float) -> Stream:
        """Raises ``UnreachableError`` (not connected, or protocol unknown there) or ``DeadlineError``."""

    async def subscribe(self, topic: str, validate: Validator, receive: Receiver) -> None: ...

    async def publish(self, topic: str, message: bytes) -> None:
        """Hands a message of at most ``limits.ANNOUNCEMENT_BYTES`` to the gossip mesh; never waits for a peer."""

    async def provide(self, key: bytes, *, deadline_seconds: float) -> None:
        """Announces in the DHT that this host provides ``key`` (32 bytes). Raises ``DeadlineError``."""

    async def find_providers(self, key: bytes, *, limit: int, deadline_seconds: float) -> Sequence[Address]:
        """Addresses of at most ``limit`` providers, each ending in /p2p/<peer id>."""
