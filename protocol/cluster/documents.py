"""The signed documents that state who may be in a private cluster; ``protocol.cluster.admission`` judges them.

    invitation   signed by the owner: the holder of the private half of ``key`` may join, while seats and time last
    join         signed by the invitation's key and by the newcomer's: this peer takes a seat, at this time
    certificate  signed by the owner: this peer is a member until a given time
    revocations  signed by the owner: the whole list each time, under a sequence number that rises
    key change   signed by the owner: another pre-shared key from now on; the only secret document here

A join by an open invitation makes its peer a member by itself, so that the owner may be offline. If the invitation
needs the owner, a join is a request, which the owner answers with a certificate. The credential of a peer is the join
or the certificate that it shows to others. It is no secret, because nobody can use it without the peer's own key.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from protocol import limits, wire
from protocol.cluster.cluster_manifest import UnixSeconds
from protocol.cluster.signed_document import body_of, open_document, payload_of, sign_document
from protocol.errors import MalformedError
from protocol.identity import NodeKey, verify
from protocol.messages import Counter, Hash16, Hash32, Name

INVITATION_DOMAIN: Final = b"starling/invitation/1"
JOIN_DOMAIN: Final = b"starling/join/1"
CERTIFICATE_DOMAIN: Final = b"starling/certificate/1"
REVOCATIONS_DOMAIN: Final = b"starling/revocations/1"
KEY_CHANGE_DOMAIN: Final = b"starling/key-change/1"

Document = Annotated[bytes, Meta(max_length=limits.DOCUMENT_BYTES)]
RevocationsDocument = Annotated[bytes, Meta(max_length=limits.REVOCATIONS_BYTES)]
Keys = Annotated[tuple[Hash32, ...], Meta(max_length=limits.REVOKED)]


class Invitation(Struct, frozen=True, array_like=True):
    """The owner's permission to join."""

    swarm_id: Hash16
    key: Hash32  # public half of the invitation's own key, and its name
    seats: Annotated[int, Meta(ge=1, le=limits.MEMBERS)]  # how many peers may join with it
    needs_owner: bool  # the owner must sign a certificate; otherwise a join is enough
    made_seconds: UnixSeconds
    valid_from_seconds: UnixSeconds
    join_by_seconds: UnixSeconds
    name: Name  # of its holder, for people


class Join(Struct, frozen=True, array_like=True):
    """A newcomer's use of an invitation."""

    invitation: Document  # as the owner signed it
    peer: Hash32  # public key
    time_seconds: UnixSeconds  # the newcomer's clock


class Certificate(Struct, frozen=True, array_like=True):
    """The owner's statement that a peer is a member."""

    swarm_id: Hash16
    peer: Hash32  # public key
    invitation: Hash32  # the key of the invitation that it came with
    made_seconds: UnixSeconds
    until_seconds: UnixSeconds
    name: Name


class Revocations(Struct, frozen=True, array_like=True):
    """All peers and invitations that the owner revoked; the later list replaces the earlier one."""

    swarm_id: Hash16
    sequence: Counter
    made_seconds: UnixSeconds
    peers: Keys
    invitations: Keys  # each with every member whose only credential is a join by it


class FormerKey(Struct, frozen=True, array_like=True):
    """A former pre-shared key, which still admits a member that was away when the key changed."""

    psk: Hash32
    until_seconds: UnixSeconds

    def __repr__(self) -> str:
        return f"FormerKey(psk='hidden', until_seconds={self.until_seconds})"


class KeyChange(Struct, frozen=True, array_like=True):
    """The owner's order to use another pre-shared key. Its text forms show no key."""

    swarm_id: Hash16
    sequence: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    made_seconds: UnixSeconds
    psk: Hash32
    former: Annotated[tuple[FormerKey, ...], Meta(max_length=limits.FORMER_KEYS)]  # the newest first

    def __repr__(self) -> str:
        return f"KeyChange(sequence={self.sequence}, psk='hidden', former={self.former!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("sequence", self.sequence), ("psk", "hidden"), ("former", self.former)]


class Credential(Struct, frozen=True, array_like=True):
    """The document with which a peer proves that it is a member: a join by an invitation, or the owner's certificate.

    ``document`` is signed, and nothing here verifies it: ``protocol.cluster.admission`` does.
    """

    kind: Literal["join", "certificate"]
    document: Document

    def encode(self) -> bytes:
        """Returns the bytes that others receive; ``decode_credential`` reads them."""
        return msgspec.msgpack.encode(self)


def sign_invitation(owner: NodeKey, invitation: Invitation) -> bytes:
    return sign_document(owner, INVITATION_DOMAIN, invitation)


def open_invitation(raw: bytes, *, owner: bytes) -> Invitation:
    """Raises what ``open_document`` raises, as every ``open_…`` of this module does."""
    return open_document(raw, INVITATION_DOMAIN, Invitation, signer=owner, max_bytes=limits.DOCUMENT_BYTES)


def sign_join(invitation_key: NodeKey, peer_key: NodeKey, *, invitation: bytes, time_seconds: float) -> bytes:
    """A join by the node of ``peer_key``: ``[payload, signature of the invitation's key, signature of the peer's]``."""
    payload = payload_of(Join(invitation, peer_key.public_bytes, int(time_seconds)))
    return msgspec.msgpack.encode(
        (payload, invitation_key.sign(JOIN_DOMAIN, payload), peer_key.sign(JOIN_DOMAIN, payload))
    )


def open_join(raw: bytes, *, owner: bytes) -> tuple[Join, Invitation]:
    """The join and its invitation, all three signatures verified."""
    payload, by_invitation, by_peer = wire.decode(raw, tuple[bytes, bytes, bytes], max_bytes=limits.DOCUMENT_BYTES)
    join = body_of(payload, Join, max_bytes=limits.DOCUMENT_BYTES)
    invitation = open_invitation(join.invitation, owner=owner)
    verify(invitation.key, JOIN_DOMAIN, payload, by_invitation)
    verify(join.peer, JOIN_DOMAIN, payload, by_peer)
    return join, invitation


def sign_certificate(owner: NodeKey, certificate: Certificate) -> bytes:
    return sign_document(owner, CERTIFICATE_DOMAIN, certificate)


def open_certificate(raw: bytes, *, owner: bytes) -> Certificate:
    return open_document(raw, CERTIFICATE_DOMAIN, Certificate, signer=owner, max_bytes=limits.DOCUMENT_BYTES)


def sign_revocations(owner: NodeKey, revocations: Revocations) -> bytes:
    """Raises ``ValueError`` for a list longer than ``limits.REVOKED``."""
    _check_length(revocations, ValueError)
    return sign_document(owner, REVOCATIONS_DOMAIN, revocations)


def open_revocations(raw: bytes, *, owner: bytes) -> Revocations:
    revocations = open_document(raw, REVOCATIONS_DOMAIN, Revocations, signer=owner, max_bytes=limits.REVOCATIONS_BYTES)
    _check_length(revocations, MalformedError)
    return revocations


def sign_key_change(owner: NodeKey, change: KeyChange) -> bytes:
    return sign_document(owner, KEY_CHANGE_DOMAIN, change)


def open_key_change(raw: bytes, *, owner: bytes) -> KeyChange:
    return open_document(raw, KEY_CHANGE_DOMAIN, KeyChange, signer=owner, max_bytes=limits.DOCUMENT_BYTES)


def decode_credential(raw: bytes) -> Credential:
    """Returns the credential in bytes of a peer. The document in it is neither decoded nor verified.

    Raises ``OversizedError`` above ``limits.DOCUMENT_BYTES``, ``MalformedError`` for bytes that are no credential.
    """
    return wire.decode(raw, Credential, max_bytes=limits.DOCUMENT_BYTES)


def _check_length(revocations: Revocations, error: type[Exception]) -> None:
    revoked = len(revocations.peers) + len(revocations.invitations)
    if revoked > limits.REVOKED:
        raise error(
            f"{revoked} revocations; at most {limits.REVOKED} are allowed: leave out those whose time is over, "
            "or create the cluster anew"
        )
