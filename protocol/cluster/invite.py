"""The invite, the only string that a newcomer needs: ``starling://1`` and base58 of

    body ‖ first 4 bytes of SHA-256("starling/invite/1\\0" ‖ body)

body being MessagePack. It holds the cluster's pre-shared key and the private half of the invitation's key, so that
anyone who sees the string may join while the invitation is valid. No text form and no error of this module shows either
key. The four bytes distinguish a string that was cut or mistyped from a forged one.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from protocol import base58, limits, wire
from protocol.cluster.documents import Document, Invitation, open_invitation
from protocol.errors import MalformedError, OversizedError, SignatureError, VersionError
from protocol.identity import NodeKey, peer_id_of, public_bytes_of
from protocol.messages import Hash32

SCHEME: Final = "starling://"
PSK_BYTES: Final = 32
_VERSION: Final = "1"
_CHECK_DOMAIN: Final = b"starling/invite/1\0"
_CHECK_BYTES: Final = 4
_THROUGH: Final = "/p2p-circuit/"  # in an address, between the relay's own and the peer behind it
_AROUND: Final = "<>()[]{}\"'`*.,;"  # characters that people and programs put around a link


class _Address(Struct, frozen=True, array_like=True):
    ip: Annotated[bytes, Meta(min_length=4, max_length=16)]
    port: Annotated[int, Meta(ge=1, le=65_535)]  # TCP
    peer: Hash32


class _Body(Struct, frozen=True, array_like=True):
    invitation: Document
    secret: Hash32  # seed of the invitation's key
    owner: Hash32
    psk: Hash32
    addresses: Annotated[tuple[_Address, ...], Meta(max_length=limits.INVITE_ADDRESSES)]

    def __repr__(self) -> str:
        return "_Body(…)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class Invite(Struct, frozen=True):
    """An invite whose signature was verified and whose times were not judged. Its text forms show no secret."""

    invitation: Invitation
    document: bytes  # the invitation as the owner signed it
    secret: bytes  # 32, seed of the invitation's key
    owner: bytes  # public key
    psk: bytes  # 32, of the transport
    addresses: tuple[str, ...]  # multiaddrs ending in /p2p/<peer id>

    @property
    def key(self) -> NodeKey:
        """The invitation's key, which signs a join."""
        return NodeKey(self.secret)

    def __repr__(self) -> str:
        return f"Invite({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [
            ("invitation", self.invitation),
            ("owner", self.owner.hex()),
            ("secret", "hidden"),
            ("psk", "hidden"),
            ("addresses", self.addresses),
        ]


def encode_invite(*, document: bytes, key: NodeKey, owner: bytes, psk: bytes, addresses: Sequence[str]) -> str:
    """The string of an invite. Raises ``ValueError`` for more than ``limits.INVITE_ADDRESSES`` addresses, for one that
    is not an /ip4 or /ip6 address over TCP, and for a pre-shared key that has not 32 bytes."""
    if len(psk) != PSK_BYTES or len(addresses) > limits.INVITE_ADDRESSES:
        raise ValueError(
            f"an invite holds a pre-shared key of {PSK_BYTES} bytes, not {len(psk)}, and at most "
            f"{limits.INVITE_ADDRESSES} addresses, not {len(addresses)}"
        )
    body = msgspec.msgpack.encode(
        _Body(document, key.private_bytes, owner, psk, tuple(_packed(address) for address in addresses))
    )
    return SCHEME + _VERSION + base58.to_text(body + _check(body))


def address_to_invite(address: str) -> str:
    """Returns the address that an invite names for a member at ``address``: the relay's own, where the member is
    reached through one.

    The relay is a member too, and every member admits newcomers. Before it has admitted one it passes nothing on for
    it, and afterwards the newcomer learns from it where the others are.
    """
    relay, through, _ = address.partition(_THROUGH)
    return relay if through else address


def decode_invite(text: str) -> Invite:
    """The invite in ``text``, which a chat program may have wrapped, quoted or bracketed.

    Raises ``OversizedError``, ``MalformedError``, ``VersionError``, or ``SignatureError`` if its parts do not belong
    together. No error repeats any of the text.
    """
    if len(text) > 2 * limits.INVITE_CHARACTERS:
        raise OversizedError(f"{len(text)} characters; an invite has at most {limits.INVITE_CHARACTERS}")
    bare = "".join(text.split()).strip(_AROUND)
    if bare[: len(SCHEME)].lower() != SCHEME:
        raise MalformedError(f"it does not begin with {SCHEME}")
    if len(bare) > limits.INVITE_CHARACTERS:
        raise OversizedError(f"{len(bare)} characters; an invite has at most {limits.INVITE_CHARACTERS}")
    version, characters = bare[len(SCHEME) : len(SCHEME) + 1], bare[len(SCHEME) + 1 :]
    if version and version != _VERSION:
        raise VersionError(f"it is of another version of starling: invites of this one begin with {SCHEME}{_VERSION}")
    raw = base58.to_bytes(characters)
    body = raw[:-_CHECK_BYTES]
    if _check(body) != raw[-_CHECK_BYTES:]:
        raise MalformedError("its checksum is wrong: a part is missing, or a character was changed")
    opened = wire.decode(body, _Body, max_bytes=limits.INVITE_CHARACTERS)
    invitation = open_invitation(opened.invitation, owner=opened.owner)
    if invitation.key != NodeKey(opened.secret).public_bytes:
        raise SignatureError("its secret is not that of the invitation in it: it was made from parts of two invites")
    addresses = tuple(_unpacked(address) for address in opened.addresses)
    return Invite(invitation, opened.invitation, opened.secret, opened.owner, opened.psk, addresses)


def _check(body: bytes) -> bytes:
    return hashlib.sha256(_CHECK_DOMAIN + body).digest()[:_CHECK_BYTES]


def _packed(address: str) -> _Address:
    match address.split("/"):
        case ["", "ip4" | "ip6" as kind, ip, "tcp", port, "p2p", peer] if port.isdecimal() and 0 < int(port) < 65_536:
            packed = ipaddress.ip_address(ip)
            if packed.version == int(kind[-1]) and not (packed.version == 6 and packed.scope_id):
                return _Address(packed.packed, int(port), public_bytes_of(peer))
    raise ValueError(
        f"{address[:200]!r} is not an address for an invite: /ip4/<ip>/tcp/<port>/p2p/<peer id>, or /ip6/…"
    )


def _unpacked(address: _Address) -> str:
    if len(address.ip) not in (4, 16):
        raise MalformedError(f"an IP address of {len(address.ip)} bytes; 4 or 16 are possible")
    ip = ipaddress.ip_address(address.ip)
    return f"/ip{ip.version}/{ip}/tcp/{address.port}/p2p/{peer_id_of(address.peer)}"
