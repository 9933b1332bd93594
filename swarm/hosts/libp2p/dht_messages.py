"""Bounds on one message of the DHT, kept before the library reads anything in it.

The library writes ids of peers as base58, whatever their length, which takes time in the square of it: one id of 64 kB
costs seconds. It keeps addresses unread, and code that reads them later meets an exception. It verifies signed records
with whatever key is in them, an RSA key of any size among them. ``bounded`` therefore drops

- peers whose id is longer than ``PEER_ID_BYTES``, and those after the first ``PEERS`` of either list;
- addresses that cannot be read, are longer than ``ADDRESS_BYTES``, or come after the first ``ADDRESSES`` of a peer;
- signed records: nothing here depends on them.

What remains of a message costs a few milliseconds, however it was made.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from libp2p.abc import INetStream
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.utils.varint import read_varint_prefixed_bytes_limited
from multiaddr import Multiaddr  # type: ignore[import-untyped]
from multiaddr.exceptions import Error as MultiaddrError  # type: ignore[import-untyped]

from protocol.identity import PEER_ID_BYTES

PEERS = 32  # of either list: an answer of ours has as many providers and twenty closer peers
ADDRESSES = 8  # of one peer
ADDRESS_BYTES = 256


async def read_bounded(stream: INetStream, max_bytes: int) -> bytes:
    """Reads one message, and returns what ``bounded`` leaves of it. Raises what the library's reading raises."""
    return bounded(await read_varint_prefixed_bytes_limited(stream, max_bytes))


def bounded(raw: bytes) -> bytes:
    """Returns the message without what exceeds the bounds of this module; bytes that are no message as they are."""
    try:
        message = Message.FromString(raw)
    except DecodeError:
        return raw  # the library's own reading fails in the same way
    message.ClearField("senderRecord")
    _keep_sound(message.providerPeers)
    _keep_sound(message.closerPeers)
    return message.SerializeToString()


def read_address(raw: bytes) -> str | None:
    """Returns an address as text; None if it cannot be read."""
    if len(raw) > ADDRESS_BYTES:
        return None
    try:
        return str(Multiaddr(raw))
    except (MultiaddrError, ValueError):
        return None


def _keep_sound(peers: Any) -> None:
    sound = [peer for peer in peers[: 2 * PEERS] if len(peer.id) <= PEER_ID_BYTES][:PEERS]
    for peer in sound:
        peer.ClearField("signedRecord")
        addresses = [raw for raw in peer.addrs[:ADDRESSES] if read_address(raw) is not None]
        del peer.addrs[:]
        peer.addrs.extend(addresses)
    del peers[:]
    peers.extend(sound)
