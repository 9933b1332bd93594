"""The handshake of a private cluster: what two peers say to each other after they have proven their keys and before
anything else passes. Who is not let in never becomes a peer: it is told why, and the connection ends.

    who dialled → greeting;  who was dialled → answer;  who dialled → conclusion, and the connection is open

each a u32 length (big-endian) and MessagePack, within ``FRAME_SECONDS`` each:

    greeting   = [swarm id, own time, credential, number of revocations, number of key change, wants the manifest]
    answer     = [refusal or nil, greeting or nil, documents or nil]
    conclusion = [refusal or nil, documents]
    refusal    = [reason, own time, list of revocations where that is why]
    documents  = [manifest, list of revocations, change of key, certificate]; what is not given is empty

Numbers are sequence + 1, 0 for none: whoever has the later document gives it. A change of key holds the pre-shared key
and is given to members alone. No text of a peer travels: each side says in its own words what a reason means.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import anyio
import msgspec
from msgspec import Meta, Struct

from protocol import limits, wire
from protocol.cluster.cluster_manifest import UnixSeconds
from protocol.cluster.documents import Document
from protocol.cluster.refusal import RefusalReason
from protocol.errors import DeadlineError, OversizedError
from protocol.messages import Counter, Hash16
from swarm.host import Handshake, PeerId

FRAME_SECONDS = 5.0  # for each frame of the other side
FRAME_BYTES = limits.MANIFEST_BYTES + limits.REVOCATIONS_BYTES + 8 * limits.DOCUMENT_BYTES
_LENGTH = struct.Struct(">I")

Send = Callable[[bytes], Awaitable[None]]
Receive = Callable[[int], Awaitable[bytes]]  # exactly that many bytes, or it raises

_Manifest = Annotated[bytes, Meta(max_length=limits.MANIFEST_BYTES)]
_Revocations = Annotated[bytes, Meta(max_length=limits.REVOCATIONS_BYTES)]


class HandshakeGreeting(Struct, frozen=True, array_like=True):
    swarm_id: Hash16
    time_seconds: UnixSeconds
    credential: Document
    revocations: Counter
    key_change: Counter
    wants_manifest: bool = False


class HandshakeRefusal(Struct, frozen=True, array_like=True):
    reason: RefusalReason
    time_seconds: UnixSeconds
    revocations: _Revocations = b""


class HandshakeDocuments(Struct, frozen=True, array_like=True):
    manifest: _Manifest = b""
    revocations: _Revocations = b""
    key_change: Document = b""
    certificate: Document = b""

    def __repr__(self) -> str:  # a change of key is a secret
        return "Documents(…)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class HandshakeAnswer(Struct, frozen=True, array_like=True):
    refusal: HandshakeRefusal | None
    greeting: HandshakeGreeting | None
    documents: HandshakeDocuments | None


class HandshakeConclusion(Struct, frozen=True, array_like=True):
    refusal: HandshakeRefusal | None
    documents: HandshakeDocuments


T = TypeVar("T", HandshakeGreeting, HandshakeAnswer, HandshakeConclusion)


def decode_frame(raw: bytes, kind: type[T]) -> T:
    """Raises ``OversizedError`` or ``MalformedError``."""
    return wire.decode(raw, kind, max_bytes=FRAME_BYTES)


async def perform_handshake(handshake: Handshake, peer: PeerId, send: Send, receive: Receive, *, dialled: bool) -> None:
    """Both sides call this, over a channel that has proven ``peer``; ``dialled``: we did. On return each is let in.

    Raises ``RefusedError`` where either side refuses, ``ProtocolError``, ``DeadlineError``, and what the channel does.
    """
    if dialled:
        await _send(send, handshake.greet(peer))
        said = handshake.conclude(peer, await _receive(peer, receive))
    else:
        said = handshake.answer(peer, await _receive(peer, receive))
    if said.frame:
        await _send(send, said.frame)
    if said.refused is not None:
        raise said.refused
    if not dialled:
        handshake.confirm(peer, await _receive(peer, receive))


async def _send(send: Send, frame: bytes) -> None:
    await send(_LENGTH.pack(len(frame)) + frame)


async def _receive(peer: PeerId, receive: Receive) -> bytes:
    with anyio.move_on_after(FRAME_SECONDS):
        (length,) = _LENGTH.unpack(await receive(_LENGTH.size))
        if length > FRAME_BYTES:
            raise OversizedError(f"{length} bytes in the handshake; at most {FRAME_BYTES} are allowed")
        return await receive(length)
    raise DeadlineError(f"{peer} said nothing in the handshake for {FRAME_SECONDS:g} s")


def encode_frame(frame: HandshakeGreeting | HandshakeAnswer | HandshakeConclusion) -> bytes:
    return msgspec.msgpack.encode(frame)
