"""The invitation of a donor, the only string that it needs: ``starling-lend://1`` and base58 of

    body ‖ first 4 bytes of SHA-256("starling/lend/1\\0" ‖ body)

body being MessagePack. It names the owner, where it answers and which swarm it is in, and holds a secret that makes the
first peer that shows it a donor. In a private cluster it also holds an invite, since strangers reach no member of one.
The owner keeps the secret's hash alone.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from protocol import base58, limits, wire
from protocol.errors import MalformedError, OversizedError, VersionError
from protocol.identity import public_bytes_of
from protocol.messages import Hash16, Hash32, Name

DONOR_SCHEME: Final = "starling-lend://"
_VERSION: Final = "1"
_CHECK_DOMAIN: Final = b"starling/lend/1\0"
_CHECK_BYTES: Final = 4
_AROUND: Final = "<>()[]{}\"'`*.,;"  # characters that people and programs put around a link

_Address = Annotated[str, Meta(min_length=1, max_length=limits.ADDRESS_CHARACTERS)]


class DonorInvitation(Struct, frozen=True, array_like=True):
    """Its text forms do not show the secret."""

    owner: Annotated[str, Meta(max_length=64)]  # peer id
    addresses: Annotated[tuple[_Address, ...], Meta(max_length=limits.INVITE_ADDRESSES)]  # multiaddrs with /p2p/
    swarm_name: Name
    swarm_id: Hash16
    secret: Hash32
    cluster_invite: Annotated[str, Meta(max_length=limits.INVITE_CHARACTERS)] = ""  # of a private cluster

    def __repr__(self) -> str:
        return f"DonorInvitation(owner={self.owner!r}, addresses={self.addresses!r}, …)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("owner", self.owner), ("addresses", self.addresses)]

    @property
    def secret_hash(self) -> bytes:
        return hash_of_secret(self.secret)


def hash_of_secret(secret: bytes) -> bytes:
    """What the owner keeps of a secret: 32 random bytes cannot be found from it."""
    return hashlib.sha256(b"starling/lend/secret/1\0" + secret).digest()


def encode_donor_invitation(invitation: DonorInvitation) -> str:
    body = msgspec.msgpack.encode(invitation)
    return DONOR_SCHEME + _VERSION + base58.to_text(body + _check(body))


def decode_donor_invitation(text: str) -> DonorInvitation:
    """The invitation in ``text``, which a chat program may have wrapped, quoted or bracketed.

    Raises ``OversizedError``, ``MalformedError`` or ``VersionError``. No error repeats any of the text.
    """
    if len(text) > 2 * limits.LEND_INVITATION_CHARACTERS:
        raise OversizedError(
            f"{len(text)} characters; a donor's invitation has at most {limits.LEND_INVITATION_CHARACTERS}"
        )
    bare = "".join(text.split()).strip(_AROUND)
    if bare[: len(DONOR_SCHEME)].lower() != DONOR_SCHEME:
        raise MalformedError(f"it does not begin with {DONOR_SCHEME}")
    if len(bare) > limits.LEND_INVITATION_CHARACTERS:
        raise OversizedError(
            f"{len(bare)} characters; a donor's invitation has at most {limits.LEND_INVITATION_CHARACTERS}"
        )
    version, characters = bare[len(DONOR_SCHEME) : len(DONOR_SCHEME) + 1], bare[len(DONOR_SCHEME) + 1 :]
    if version and version != _VERSION:
        raise VersionError(
            f"it is of another version of starling: donors' invitations of this one begin with {DONOR_SCHEME}{_VERSION}"
        )
    raw = base58.to_bytes(characters)
    body = raw[:-_CHECK_BYTES]
    if _check(body) != raw[-_CHECK_BYTES:]:
        raise MalformedError("its checksum is wrong: a part is missing, or a character was changed")
    invitation = wire.decode(body, DonorInvitation, max_bytes=limits.LEND_INVITATION_CHARACTERS)
    public_bytes_of(invitation.owner)  # raises where it is no peer id
    return invitation


def _check(body: bytes) -> bytes:
    return hashlib.sha256(_CHECK_DOMAIN + body).digest()[:_CHECK_BYTES]
