"""The messages of the handshake of a private cluster, sent once the transport has proven both peers' keys.

    dialler → greeting;  dialled → answer;  dialler → conclusion

    greeting   = [swarm id, own time, credential, number of revocations, number of key change, wants the manifest]
    answer     = [refusal or nil, greeting or nil, documents or nil]
    conclusion = [refusal or nil, documents]
    refusal    = [reason, own time, list of revocations where the reason is "revoked"]
    documents  = [manifest, list of revocations, change of key, certificate]; one that is not given is empty

Each is one frame of ``protocol.streams.framing``. The numbers are sequence + 1 of the documents at hand, 0 for none:
the side that has the later document gives it. A change of key holds the pre-shared key and is given to members alone.
No text is sent with a reason: each side states in its own words what a reason means.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from protocol import limits, wire
from protocol.cluster.cluster_manifest import UnixSeconds
from protocol.cluster.documents import Document, RevocationsDocument
from protocol.cluster.refusal import RefusalReason
from protocol.messages import Counter, Hash16


class HandshakeGreeting(Struct, frozen=True, array_like=True):
    swarm_id: Hash16
    time_seconds: UnixSeconds  # by the sender's clock
    credential: Document
    revocations: Counter
    key_change: Counter
    wants_manifest: bool = False


class HandshakeRefusal(Struct, frozen=True, array_like=True):
    reason: RefusalReason
    time_seconds: UnixSeconds  # by the sender's clock
    revocations: RevocationsDocument = b""


class HandshakeDocuments(Struct, frozen=True, array_like=True):
    """Its text forms show nothing, since a change of key is a secret."""

    manifest: Annotated[bytes, Meta(max_length=limits.MANIFEST_BYTES)] = b""
    revocations: RevocationsDocument = b""
    key_change: Document = b""
    certificate: Document = b""

    def __repr__(self) -> str:
        return "HandshakeDocuments(…)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class HandshakeAnswer(Struct, frozen=True, array_like=True):
    refusal: HandshakeRefusal | None
    greeting: HandshakeGreeting | None
    documents: HandshakeDocuments | None


class HandshakeConclusion(Struct, frozen=True, array_like=True):
    refusal: HandshakeRefusal | None
    documents: HandshakeDocuments


HandshakeMessage = TypeVar("HandshakeMessage", HandshakeGreeting, HandshakeAnswer, HandshakeConclusion)


def encode_handshake(message: HandshakeGreeting | HandshakeAnswer | HandshakeConclusion) -> bytes:
    """The body of a frame."""
    return msgspec.msgpack.encode(message)


def decode_handshake(raw: bytes, kind: type[HandshakeMessage]) -> HandshakeMessage:
    """The message in the body of a frame. Raises ``OversizedError`` or ``MalformedError``."""
    return wire.decode(raw, kind, max_bytes=limits.HANDSHAKE_MESSAGE_BYTES)
