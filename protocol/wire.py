"""The one way in for bytes from a peer: bounded MessagePack → schema → a typed value, or a named error.

An announcement is ``[payload: bin, signature: bin 64]``, with

    payload   = [major, minor, swarm id: bin 16, sequence, time in milliseconds, public key: bin 32, body]
    signature = Ed25519 over "starling/announcement/1" ‖ 0x00 ‖ payload, exactly the bytes received

so that no received value need be encoded again. No length field makes us allocate what it claims, and nothing recurses:
``structure.check_structure`` walks the bytes before msgspec decodes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from protocol import limits
from protocol.errors import (
    ClockError,
    MalformedError,
    OversizedError,
    UnknownKindError,
    VersionError,
    WrongSwarmError,
)
from protocol.identity import NodeKey, peer_id_of, verify
from protocol.messages import Announcement, Body, Counter, GroupAdvert, Hash16, Hash32, RolloutAdvert
from protocol.structure import check_structure, first_values

ANNOUNCEMENT_DOMAIN: Final = b"starling/announcement/1"
KINDS: Final = frozenset({"heartbeat", "rollouts", "state", "goodbye"})

T = TypeVar("T")


class _Version(Struct, frozen=True, array_like=True):
    """The two elements at the beginning of a payload of every major version."""

    major: Annotated[int, Meta(ge=0, le=2**16 - 1)]
    minor: Annotated[int, Meta(ge=0, le=2**16 - 1)]


class _Header(Struct, frozen=True, array_like=True):
    major: int
    minor: int
    swarm_id: Hash16
    sequence: Counter
    time_milliseconds: Counter
    public_key: Hash32


class _Payload(_Header, frozen=True, array_like=True):
    body: Raw


@dataclass(frozen=True, slots=True)
class Envelope:
    """An announcement whose sender, sequence and time are verified and whose body is not looked at yet."""

    sender: str
    sequence: int
    time_seconds: float
    payload: bytes


class _Kind(Struct, frozen=True, array_like=True):
    """The first element of any body, known or not."""

    kind: Annotated[str, Meta(max_length=limits.NAME_BYTES)]


def seal(key: NodeKey, *, swarm_id: bytes, sequence: int, time_seconds: float, body: Body) -> bytes:
    """A signed announcement, ready to be gossiped.

    ``sequence`` rises with every announcement of this key, across restarts too; ``time_seconds`` is our clock in Unix
    time, sent in whole milliseconds. Raises ``OversizedError`` for more than ``limits.ANNOUNCEMENT_BYTES``, and
    ``ValueError`` for a body that every receiver would refuse: that is our own bug, not a peer's.
    """
    encoded = msgspec.msgpack.encode(body)
    try:
        _body_of(encoded)
    except MalformedError as error:
        raise ValueError(f"this announcement must not be sent: {error}") from error
    payload = msgspec.msgpack.encode(
        _Payload(
            limits.PROTOCOL_MAJOR,
            limits.PROTOCOL_MINOR,
            swarm_id,
            sequence,
            round(time_seconds * 1000),
            key.public_bytes,
            Raw(encoded),
        )
    )
    raw = msgspec.msgpack.encode((payload, key.sign(ANNOUNCEMENT_DOMAIN, payload)))
    _check_size(raw, limits.ANNOUNCEMENT_BYTES)
    return raw


def open_announcement(raw: bytes, *, swarm_id: bytes, now_seconds: float) -> Announcement:
    """The announcement in ``raw``, verified except for replay, which the caller checks since it needs memory."""
    return open_body(open_envelope(raw, swarm_id=swarm_id, now_seconds=now_seconds))


def open_envelope(raw: bytes, *, swarm_id: bytes, now_seconds: float) -> Envelope:
    """Checks who sent an announcement, in a time that does not grow with the number of values in its body.

    Checks in this order, each with its error: size, envelope (``OversizedError``, ``MalformedError``), version
    (``VersionError``), header (``MalformedError``), swarm (``WrongSwarmError``), clock (``ClockError``), signature
    (``SignatureError``).
    """
    payload, signature = decode(raw, tuple[bytes, bytes], max_bytes=limits.ANNOUNCEMENT_BYTES)
    check_version(first_values(payload, 2))
    header = _to_type(first_values(payload, 6), _Header)
    if header.swarm_id != swarm_id:
        raise WrongSwarmError(f"for swarm {header.swarm_id.hex()}; ours is {swarm_id.hex()}")
    sent_seconds = header.time_milliseconds / 1000
    if abs(sent_seconds - now_seconds) > limits.CLOCK_WINDOW_SECONDS:
        raise ClockError(
            f"sent {sent_seconds - now_seconds:+.0f} s off our time, ±{limits.CLOCK_WINDOW_SECONDS:.0f} s are allowed; "
            "if many peers seem wrong, set this machine's clock",
            sent_seconds - now_seconds,
        )
    verify(header.public_key, ANNOUNCEMENT_DOMAIN, payload, signature)
    return Envelope(peer_id_of(header.public_key), header.sequence, sent_seconds, payload)


def open_body(envelope: Envelope) -> Announcement:
    """The announcement in a verified envelope.

    Checks in this order: structure (``OversizedError``, ``MalformedError``), kind (``UnknownKindError``), schema
    (``MalformedError``). Fields that a newer minor version appended are ignored.
    """
    check_structure(envelope.payload)
    body = _body_of(_to_type(envelope.payload, _Payload).body)
    return Announcement(envelope.sender, envelope.sequence, envelope.time_seconds, body)


def decode(raw: bytes, type_: type[T], *, max_bytes: int) -> T:
    """The value of ``type_`` that ``raw`` encodes. Everything from a peer passes this function.

    Raises ``OversizedError`` over ``max_bytes``, ``MalformedError`` for what does not decode or breaks the schema.
    """
    _check_size(raw, max_bytes)
    check_structure(raw)
    return _to_type(raw, type_)


def check_version(payload: bytes) -> None:
    """Raises ``VersionError`` if a payload of sound structure begins with another major version than ours."""
    version = _to_type(payload, _Version)
    if version.major != limits.PROTOCOL_MAJOR:
        raise VersionError(_version_remedy(version))


def check_advert(advert: GroupAdvert) -> None:
    """Raises ``MalformedError`` unless the columns of an advert have one entry for each completion."""
    counts = {len(advert.rewards), len(advert.lengths), len(advert.mean_logps)}
    if len(counts) != 1:
        raise MalformedError(
            f"an advert with {len(advert.rewards)} rewards, {len(advert.lengths)} lengths and "
            f"{len(advert.mean_logps)} mean log-probabilities; each needs one entry for each completion"
        )


def _body_of(raw: bytes | Raw) -> Body:
    kind = _to_type(raw, _Kind).kind
    if kind not in KINDS:
        raise UnknownKindError(f"announcement of kind {kind!r}; this version knows {', '.join(sorted(KINDS))}")
    body: Body = _to_type(raw, Body)  # type: ignore[arg-type]  # a union is not a class to mypy
    if isinstance(body, RolloutAdvert):
        for advert in body.groups:
            check_advert(advert)
    return body


def _check_size(raw: bytes, max_bytes: int) -> None:
    if len(raw) > max_bytes:
        raise OversizedError(f"{len(raw)} bytes; at most {max_bytes} are allowed")


def _to_type(raw: bytes | Raw, type_: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(raw, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedError(str(error)) from error


def _version_remedy(theirs: _Version) -> str:
    ours = f"{limits.PROTOCOL_MAJOR}.{limits.PROTOCOL_MINOR}"
    who = "this node must be upgraded" if theirs.major > limits.PROTOCOL_MAJOR else "the sender must be upgraded"
    return f"protocol {theirs.major}.{theirs.minor}, ours is {ours}: {who}"
