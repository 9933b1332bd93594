"""The messages of libp2p's circuit v2 and of DCUtR: protobuf behind an unsigned varint of its length, bounded.

``HopMessage`` passes between a client and its relay, ``StopMessage`` between the relay and the host that is reached
through it. The library has the same messages; its relay ends one circuit of a peer with another, and writes a status
into the bytes of a circuit whose limit is reached, so that only its message types are used.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final, TypeVar

from google.protobuf.message import DecodeError
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, StopMessage
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch
from multiaddr import Multiaddr  # type: ignore[import-untyped]
from multiaddr.exceptions import Error as MultiaddrError  # type: ignore[import-untyped]

from protocol.errors import MalformedError, OversizedError, UnreachableError
from swarm.host import Stream

HOP_PROTOCOL: Final = "/libp2p/circuit/relay/0.2.0/hop"
STOP_PROTOCOL: Final = "/libp2p/circuit/relay/0.2.0/stop"
PUNCH_PROTOCOL: Final = "/libp2p/dcutr"
CIRCUIT: Final = "/p2p-circuit"
MESSAGE_BYTES: Final = 4096
ADDRESSES_READ: Final = 8  # of one message; further ones are ignored

SocketAddress = tuple[str, int]  # (IP, TCP port)
CircuitMessage = TypeVar("CircuitMessage", HopMessage, StopMessage, HolePunch)


async def send_message(stream: Stream, message: HopMessage | StopMessage | HolePunch) -> None:
    body = message.SerializeToString()
    prefix, left = bytearray(), len(body)
    while left > 0x7F:
        prefix.append(left & 0x7F | 0x80)
        left >>= 7
    await stream.send(bytes(prefix) + bytes([left]) + body)


async def receive_message(stream: Stream, kind: type[CircuitMessage]) -> CircuitMessage:
    """Reads one message and nothing behind it. Raises ``OversizedError``, ``MalformedError``, ``UnreachableError``."""
    length, shift = 0, 0
    while True:
        byte = (await _exactly(stream, 1))[0]
        length |= (byte & 0x7F) << shift
        shift += 7
        if length > MESSAGE_BYTES or shift > 21:
            raise OversizedError(f"{stream.peer} sends a circuit message of more than {MESSAGE_BYTES} bytes")
        if not byte & 0x80:
            break
    try:
        return kind.FromString(await _exactly(stream, length))
    except DecodeError as error:
        raise MalformedError(f"{stream.peer} sends what is no {kind.__name__}") from error


async def _exactly(stream: Stream, size: int) -> bytes:
    received = b""
    while len(received) < size:
        piece = await stream.receive(size - len(received))
        if not piece:
            raise UnreachableError(f"{stream.peer} ended the stream within a circuit message")
        received += piece
    return received


def packed(addresses: Iterable[SocketAddress]) -> list[bytes]:
    """Returns the addresses as the messages carry them."""
    return [Multiaddr(f"/ip{ip_address(ip).version}/{ip}/tcp/{port}").to_bytes() for ip, port in addresses]


def unpacked(addresses: Iterable[bytes]) -> list[SocketAddress]:
    """Returns those of the first ``ADDRESSES_READ`` addresses that are an IP address and a TCP port."""
    found = []
    for raw in list(addresses)[:ADDRESSES_READ]:
        try:
            parts = str(Multiaddr(raw)).split("/")
            if len(parts) == 5 and parts[1] in ("ip4", "ip6") and parts[3] == "tcp":
                found.append((str(ip_address(parts[2])), int(parts[4])))
        except (MultiaddrError, ValueError):
            continue
    return found
