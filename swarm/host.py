"""The interface of a libp2p host, as the swarm uses it, whichever implementation is below.

``swarm.hosts`` has three implementations: ``libp2p`` (py-libp2p on real sockets), ``go`` (a Go daemon; docs/hosts.md
says what it lacks) and ``simulated`` (in memory, virtual time, faults). One set of conformance tests runs against all.
The interface is written for anyio; every call that waits for a peer has a deadline.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from protocol.cluster.refusal import AdmissionRefused
from protocol.errors import RefusedError

PeerId = str  # libp2p peer id, base58btc, "12D3Koo…"
Address = str  # multiaddr ending in /p2p/<peer id>


def tcp_address(ip: str, port: int) -> str:
    """Returns the multiaddr of a TCP port, which names no peer yet."""
    return f"/{'ip6' if ':' in ip else 'ip4'}/{ip}/tcp/{port}"


class LanSwarm(NamedTuple):
    """An open swarm as a host on the local network names it. Of others both are claims."""

    swarm_id: str  # 32 hexadecimal digits
    name: str  # not escaped


class GossipVerdict(Enum):
    """A validator's verdict on a gossiped message, which the host's peer scoring uses."""

    ACCEPT = "accept"  # deliver and forward
    IGNORE = "ignore"  # neither deliver nor forward; no peer is at fault
    REJECT = "reject"  # neither deliver nor forward; the peer that forwarded it loses score


Validator = Callable[[PeerId, bytes], GossipVerdict]
"""(peer that forwarded it, message) -> verdict; synchronous and quick. The peer is "" where the host cannot know it."""
Receiver = Callable[[PeerId, bytes], None]
"""(peer that forwarded it, message): called once for every accepted message of others; must not block."""


class Stream(Protocol):
    """A reliable, ordered, two-way byte stream to one peer. Not for concurrent use in one direction."""

    @property
    def peer(self) -> PeerId: ...

    @property
    def network(self) -> str:
        """The network from which the peer is connected: its IPv4 address or its IPv6 /64; empty if it is unknown."""

    async def send(self, payload: bytes) -> None:
        """Sends the whole payload. Raises ``UnreachableError`` once the peer is gone."""

    async def receive(self, max_bytes: int) -> bytes:
        """Returns 1 to ``max_bytes`` bytes, or ``b""`` at the peer's end of stream. Raises ``UnreachableError``.

        On the Go host a reset is ``b""`` too: what must be whole has a length.
        """

    async def close(self) -> None:
        """Ends our direction: the peer reads what was sent, then ``b""``.

        On either end's Go host it ends the other direction too, so no protocol may expect an answer after it.
        """

    async def reset(self) -> None:
        """Drops both directions at once."""

    async def finish(self, *, linger_seconds: float) -> None:
        """Closes, discards what the peer still sends until it ends its direction, and releases the stream.

        After ``linger_seconds`` it resets the stream. The side that opened a stream ends it with this or ``reset``.
        """


StreamHandler = Callable[[Stream], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class HandshakeReply:
    """One step of a handshake: the frame to send, none if empty, and the refusal that ends the connection."""

    frame: bytes
    refused: RefusedError | None = None


class Handshake(Protocol):
    """Decides which peers may connect to a host of a private cluster; ``swarm.cluster.handshake`` runs it.

    A host without a handshake is open. Every method is synchronous and quick. ``greet`` and ``conclude`` are called on
    the dialling side, ``answer`` and ``confirm`` on the other. Frames that cannot be decoded raise ``ProtocolError``.
    """

    def keys(self) -> Sequence[bytes]:
        """Returns the pre-shared keys, 32 bytes each: the one that we use, then those that we still accept."""

    def greet(self, peer: PeerId) -> bytes: ...

    def answer(self, peer: PeerId, greeting: bytes) -> HandshakeReply: ...

    def conclude(self, peer: PeerId, answer: bytes) -> HandshakeReply: ...

    def confirm(self, peer: PeerId, conclusion: bytes) -> None:
        """Raises ``RefusedError``."""

    def refusal(self, peer: PeerId) -> AdmissionRefused | None:
        """Returns why ``peer`` is no member now, or None. Called for every stream and every announcement."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes sent and received over the transport since start, as far as the host can count them."""

    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True, slots=True)
class Relaying:
    """What a host relays for others, and the relays through which it is reached itself."""

    serves: bool = False  # as relay, for those who ask
    reservations: int = 0  # places of others here
    circuits: int = 0  # connections of others through here now
    relayed_bytes: int = 0  # since start, for others
    relays: Sequence[PeerId] = ()  # at which this host has a place
    takes_places: bool = True  # when ``Host.reserve`` is called
    dialled: Collection[PeerId] = ()  # directly, by this host: those at which it may take one


class Host(Protocol):
    """One peer of the network. ``async with host.run():`` starts it and stops it again."""

    @property
    def peer_id(self) -> PeerId: ...

    def run(self) -> AbstractAsyncContextManager[None]:
        """Listens from entry to exit. Raises ``TransportError``, which names the address, if the port is in use."""

    def addresses(self) -> Sequence[Address]:
        """Returns the addresses at which peers can dial this host, each ending in /p2p/<peer id>.

        Every place at a relay is one of them: …/p2p/<relay>/p2p-circuit/p2p/<peer id>.
        """

    def peers(self) -> Sequence[PeerId]:
        """Returns the peers that are connected now."""

    def remote_ip(self, peer: PeerId) -> str:
        """Returns the IP address at the other end of the connection to a peer; empty if it is not connected, or only
        through a relay."""

    def is_relayed(self, peer: PeerId) -> bool:
        """Whether a peer is connected through a relay only. Once a direct connection stands, the relayed one ends."""

    def heard_on_lan(self) -> Sequence[Address]:
        """Returns addresses received by multicast on the local network; none if LAN discovery is off.

        Anybody there can send any of them. Each names a peer id, which must prove itself when it is dialled.
        """

    def traffic(self) -> Traffic: ...

    def round_trip_seconds(self, peer: PeerId) -> float | None:
        """Returns the last measured round trip to a connected peer; None before the first."""

    async def resolve(self, name: Address, *, deadline_seconds: float) -> Sequence[Address]:
        """Returns the addresses to which a name leads, /dns…/NAME/tcp/PORT/p2p/PEER or /dnsaddr/NAME.

        There is at least one; each has an IP address and ends in /p2p/<peer id>. Raises ``UnreachableError`` or
        ``DeadlineError``.
        """

    async def connect(self, address: Address, *, deadline_seconds: float) -> PeerId:
        """Dials; returns at once if it is connected. Raises ``UnreachableError`` or ``DeadlineError``."""

    @property
    def proves(self) -> bool:
        """Whether ``prove`` is offered."""

    async def prove(self, address: Address, *, deadline_seconds: float) -> None:
        """Dials an address on a new connection from a port of its own, has the peer prove its identity, and closes it.

        An address without /p2p/<peer id> is that of any peer; it has an IP address. The handshake of a private cluster
        runs too. Raises ``UnreachableError`` or ``DeadlineError`` unless the peer can be dialled there by anybody."""

    async def reserve(self, relay: PeerId, *, deadline_seconds: float) -> float:
        """Takes a place at a peer that we dialled, or renews it; returns for how many seconds it holds.

        ``addresses`` has the place until then, or until the relay is disconnected. Raises ``UnreachableError`` (not
        connected directly, not dialled by us, refused) or ``DeadlineError``."""

    def announce_also(self, addresses: Sequence[Address]) -> None:
        """From now on ``addresses`` returns these too: those of a router at which peers reached this host."""

    def serve_as_relay(self, admits: Callable[[PeerId], bool] | None) -> None:
        """From now on gives places, and relays, to the connected peers that ``admits`` accepts; None: to nobody."""

    def relaying(self) -> Relaying: ...

    async def disconnect(self, peer: PeerId) -> None: ...

    def block(self, peer: PeerId) -> None:
        """Refuses connections and gossip from a banned peer until the process ends."""

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serves ``protocol``: the handler runs in a task of its own for each incoming stream.

        If it raises, the stream is reset. A ``StarlingError`` is the peer's failure and is counted; any other exception
        is our bug and is raised out of ``run``.
        """

    async def open_stream(self, peer: PeerId, protocol: str, *, deadline_seconds: float) -> Stream:
        """Raises ``UnreachableError`` (not connected, or the peer does not know the protocol) or ``DeadlineError``."""

    async def subscribe(self, topic: str, validate: Validator, on_message: Receiver) -> None:
        """Calls ``validate`` for each new message of the topic, and ``on_message`` for those that it accepts."""

    async def publish(self, topic: str, message: bytes) -> None:
        """Hands a message of at most ``limits.ANNOUNCEMENT_BYTES`` to the gossip mesh; never waits for a peer."""

    async def provide(self, key: bytes, *, deadline_seconds: float) -> None:
        """Announces in the DHT that this host provides what has the SHA-256 ``key`` (32 bytes).

        The record's key is the multihash of it, so that any libp2p finds it by CID. Raises ``DeadlineError``.
        """

    def prefer(self, known: Callable[[], Collection[PeerId]]) -> None:
        """From now on the peers that ``known`` returns come before others: what is published here is sent to each of
        them at once, they have the first places in the gossip mesh, and their provider records are kept, and named to
        those who ask."""

    async def find_providers(self, key: bytes, *, limit: int, deadline_seconds: float) -> Sequence[Address]:
        """Returns addresses of at most ``limit`` providers, each ending in /p2p/<peer id>."""
