"""Documents that one key signs and that are kept and shown again: manifests, invitations, certificates, revocations.

    document  = [payload: bin, signature: bin 64]
    payload   = [major, minor, body]
    signature = Ed25519 over domain ‖ 0x00 ‖ payload, exactly the bytes received

Each kind has its own domain, so that no document passes for one of another kind. In contrast to an announcement, a
document has no sequence and no window of time: its body states how long it is valid, and ``protocol.cluster.admission``
judges that.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from protocol import limits, wire
from protocol.identity import NodeKey, verify

T = TypeVar("T", bound=Struct)


def payload_of(body: Struct) -> bytes:
    """The bytes to be signed. Raises ``ValueError`` for a body that every reader would refuse: that is our own bug."""
    encoded = msgspec.msgpack.encode(body)
    try:
        msgspec.msgpack.decode(encoded, type=type(body))
    except msgspec.DecodeError as error:
        raise ValueError(f"this {type(body).__name__} must not be signed: {error}") from error
    return msgspec.msgpack.encode((limits.PROTOCOL_MAJOR, limits.PROTOCOL_MINOR, msgspec.Raw(encoded)))


def sign_document(key: NodeKey, domain: bytes, body: Struct) -> bytes:
    """Returns the document of ``body``, signed by ``key`` over ``domain`` and the payload (Ed25519, RFC 8032).

    The same arguments give the same bytes. Raises ``ValueError`` as ``payload_of`` does.
    """
    payload = payload_of(body)
    return msgspec.msgpack.encode((payload, key.sign(domain, payload)))


def split_document(raw: bytes, *, max_bytes: int) -> tuple[bytes, bytes]:
    """Payload and signature, not verified. Raises ``OversizedError`` or ``MalformedError``."""
    return wire.decode(raw, tuple[bytes, bytes], max_bytes=max_bytes)


def body_of(payload: bytes, type_: type[T], *, max_bytes: int) -> T:
    """The body in a payload, its signature not verified.

    Raises ``VersionError``, ``OversizedError`` or ``MalformedError``.
    """
    wire.decode(payload, list[msgspec.Raw], max_bytes=max_bytes)
    wire.check_version(payload)
    envelope: Any = tuple[int, int, type_]  # type: ignore[valid-type]  # a type made at run time
    body: T = wire.decode(payload, envelope, max_bytes=max_bytes)[2]
    return body


def open_document(raw: bytes, domain: bytes, type_: type[T], *, signer: bytes, max_bytes: int) -> T:
    """The body of a document that ``signer`` (public key, 32 bytes) signed for ``domain``.

    Raises ``SignatureError`` if it did not, and what ``split_document`` and ``body_of`` raise.
    """
    payload, signature = split_document(raw, max_bytes=max_bytes)
    body = body_of(payload, type_, max_bytes=max_bytes)
    verify(signer, domain, payload, signature)
    return body
