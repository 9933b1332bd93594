"""The messages of the daemon's control protocol that this host needs, as protobuf (proto2).

The schema is ``hivemind/proto/p2pd.proto`` of hivemind 1.1.12; every message travels as varint length ‖ message. The
codec is written here because hivemind's Python package imports torch and asyncio, and its generated classes register
the same protobuf package as py-libp2p's. Whatever the daemon sends is bounded (``MESSAGE_BYTES``) and read into typed
values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from protocol.errors import MalformedError, OversizedError

MESSAGE_BYTES: Final = 4 << 20  # what the daemon itself accepts of one message
_FIELDS: Final = 4096  # of one message; a list of all peers that it is connected to has 320
_VARINT_BYTES: Final = 10
_UNIX: Final = 400  # the code of unix in a multiaddr
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types

Fields = Mapping[int, Sequence[int | bytes]]
"""Field number → its values, in the order in which they came."""


class RequestType(IntEnum):
    IDENTIFY = 0
    CONNECT = 1
    STREAM_OPEN = 2
    STREAM_HANDLER = 3
    DHT = 4
    LIST_PEERS = 5
    DISCONNECT = 7
    PUBSUB = 8
    PERSISTENT_CONN_UPGRADE = 9


@dataclass(frozen=True, slots=True)
class DaemonPeer:
    """A peer, and its addresses as binary multiaddrs: where it is connected, or where it can be dialled."""

    id: bytes
    addresses: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class StreamOrigin:
    """Whose stream it is, and for which protocol."""

    peer: bytes
    address: bytes  # a binary multiaddr: the other end of the connection
    protocol: str


@dataclass(frozen=True, slots=True)
class DaemonAnswer:
    """An answer to one request. ``error`` is the daemon's own text, or None."""

    error: str | None = None
    stream: StreamOrigin | None = None
    identity: DaemonPeer | None = None
    peers: tuple[DaemonPeer, ...] = ()


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """One of the answers to a search for providers."""

    peer: DaemonPeer | None
    is_end: bool


@dataclass(frozen=True, slots=True)
class PublishedMessage:
    """A gossiped message. ``author`` is the peer id that signed it; the daemon checked that signature."""

    author: bytes
    content: bytes


# Requests


def identify() -> bytes:
    return _number(1, RequestType.IDENTIFY)


def list_peers() -> bytes:
    return _number(1, RequestType.LIST_PEERS)


def persistent_connection() -> bytes:
    return _number(1, RequestType.PERSISTENT_CONN_UPGRADE)


def connect(peer: bytes, address: bytes, *, timeout_seconds: int) -> bytes:
    return _number(1, RequestType.CONNECT) + _bytes(
        2, _bytes(1, peer) + _bytes(2, address) + _number(3, timeout_seconds)
    )


def open_stream(peer: bytes, protocol: str, *, timeout_seconds: int) -> bytes:
    return _number(1, RequestType.STREAM_OPEN) + _bytes(
        3, _bytes(1, peer) + _bytes(2, protocol.encode()) + _number(3, timeout_seconds)
    )


def handle_streams(path: bytes, protocol: str) -> bytes:
    """Has the daemon connect to the Unix socket at ``path`` for each incoming stream."""
    address = _varint(_UNIX) + _varint(len(path)) + path  # a multiaddr; py-multiaddr would leave out the first slash
    return _number(1, RequestType.STREAM_HANDLER) + _bytes(
        4, _bytes(1, address) + _bytes(2, protocol.encode()) + _number(3, 0)
    )


def disconnect(peer: bytes) -> bytes:
    return _number(1, RequestType.DISCONNECT) + _bytes(7, _bytes(1, peer))


def publish(topic: str, content: bytes) -> bytes:
    return _number(1, RequestType.PUBSUB) + _bytes(8, _number(1, 2) + _bytes(2, topic.encode()) + _bytes(3, content))


def subscribe(topic: str) -> bytes:
    return _number(1, RequestType.PUBSUB) + _bytes(8, _number(1, 3) + _bytes(2, topic.encode()))


def find_providers(cid: bytes, *, count: int, timeout_seconds: int) -> bytes:
    return _number(1, RequestType.DHT) + _bytes(
        5, _number(1, 2) + _bytes(3, cid) + _number(6, count) + _number(7, timeout_seconds)
    )


def provide(cid: bytes, *, timeout_seconds: int) -> bytes:
    return _number(1, RequestType.DHT) + _bytes(5, _number(1, 8) + _bytes(3, cid) + _number(7, timeout_seconds))


def framed(message: bytes) -> bytes:
    return _varint(len(message)) + message


# What the daemon sends. Each of these raises ``MalformedError`` for anything else.


def read_answer(message: bytes) -> DaemonAnswer:
    fields = _fields(message)
    if _number_of(fields, 1) == 0:
        error = None
    else:
        error = _text_of(_fields(_bytes_of(fields, 2)), 1) if 2 in fields else "no reason given"
    return DaemonAnswer(
        error,
        read_stream_origin(_bytes_of(fields, 3)) if 3 in fields else None,
        _read_peer(_bytes_of(fields, 4)) if 4 in fields else None,
        tuple(_read_peer(_as_bytes(each)) for each in fields.get(6, ())),
    )


def read_stream_origin(message: bytes) -> StreamOrigin:
    fields = _fields(message)
    return StreamOrigin(_bytes_of(fields, 1), _bytes_of(fields, 2), _text_of(fields, 3))


def read_provider(message: bytes) -> ProviderAnswer:
    fields = _fields(message)
    return ProviderAnswer(_read_peer(_bytes_of(fields, 2)) if 2 in fields else None, _number_of(fields, 1) == 2)


def read_published(message: bytes) -> PublishedMessage:
    fields = _fields(message)
    return PublishedMessage(_bytes_of(fields, 1), _bytes_of(fields, 2) if 2 in fields else b"")


def _read_peer(message: bytes) -> DaemonPeer:
    fields = _fields(message)
    return DaemonPeer(_bytes_of(fields, 1), tuple(_as_bytes(each) for each in fields.get(2, ())))


def varint_of(content: bytes | bytearray) -> tuple[int, int] | None:
    """Returns (value, bytes that it takes) of the varint at the beginning; None if it has not ended yet."""
    value = 0
    for at, byte in enumerate(content[:_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            return value, at + 1
    if len(content) >= _VARINT_BYTES:
        raise MalformedError(f"a varint of more than {_VARINT_BYTES} bytes")
    return None


def frame_of(content: bytes | bytearray) -> tuple[int, int] | None:
    """Returns (first byte, end) of the message at the beginning of what arrived; None if more has to arrive.

    Raises ``OversizedError`` for a length above ``MESSAGE_BYTES``.
    """
    length = varint_of(content)
    if length is None:
        return None
    size, start = length
    if size > MESSAGE_BYTES:
        raise OversizedError(f"a message of {size} bytes; at most {MESSAGE_BYTES} are read")
    return (start, start + size) if len(content) >= start + size else None


def _fields(message: bytes) -> Fields:
    fields: dict[int, list[int | bytes]] = {}
    at = count = 0
    while at < len(message):
        tag, at = _varint_at(message, at)
        count += 1
        if not tag >> 3:
            raise MalformedError("field 0, which protobuf does not have")
        if count > _FIELDS:
            raise MalformedError(f"a message of more than {_FIELDS} fields")
        value: int | bytes
        match tag & 7:
            case 0:
                value, at = _varint_at(message, at)
            case 2:
                size, at = _varint_at(message, at)
                value, at = message[at : at + size], at + size
            case 1 | 5 as fixed:
                size = 8 if fixed == _FIXED64 else 4
                value, at = message[at : at + size], at + size
            case other:
                raise MalformedError(f"wire type {other} is not one of protobuf")
        if at > len(message):
            raise MalformedError("a field that is longer than its message")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _varint_at(message: bytes, at: int) -> tuple[int, int]:
    found = varint_of(message[at : at + _VARINT_BYTES])
    if found is None:
        raise MalformedError("a message that ends within a number")
    return found[0], at + found[1]


def _as_bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise MalformedError("a number where bytes belong")
    return value


def _bytes_of(fields: Fields, number: int) -> bytes:
    values = fields.get(number)
    if not values:
        raise MalformedError(f"field {number} is missing")
    return _as_bytes(values[-1])


def _text_of(fields: Fields, number: int) -> str:
    return _bytes_of(fields, number).decode(errors="replace")


def _number_of(fields: Fields, number: int) -> int:
    values = fields.get(number)
    if not values or not isinstance(values[-1], int):
        raise MalformedError(f"field {number} is missing or no number")
    return values[-1]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(value)) + value
