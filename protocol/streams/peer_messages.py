"""The messages of ``/starling/peers/1``, peer exchange: whether both peers are in one swarm, and who else is.

    asker → question;  other → answer

Each is one frame of ``protocol.streams.framing``. Addresses are claims: a peer that is dialled must prove its peer id.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

from msgspec import Meta, Struct

from protocol import limits, wire
from protocol.messages import Hash16

PEER_PROTOCOL: Final = "/starling/peers/1"

_Address = Annotated[str, Meta(max_length=limits.ADDRESS_CHARACTERS)]  # a multiaddr that ends in /p2p/<peer id>
_OwnAddresses = Annotated[tuple[_Address, ...], Meta(max_length=limits.ADDRESSES_PER_PEER)]


class PeerExchangeQuestion(Struct, frozen=True, array_like=True):
    swarm_id: Hash16
    own: _OwnAddresses  # at which the asker can be dialled
    sought: Annotated[tuple[_Address, ...], Meta(max_length=limits.PEERS_SOUGHT)]  # peer ids


class PeerExchangeAnswer(Struct, frozen=True, array_like=True):
    """To a peer of another swarm it gives the swarm id and no address."""

    swarm_id: Hash16
    own: _OwnAddresses  # at which the answerer can be dialled
    others: Annotated[tuple[_Address, ...], Meta(max_length=limits.ADDRESSES_PER_ANSWER)]  # of the peers sought first


PeerExchangeMessage = TypeVar("PeerExchangeMessage", PeerExchangeQuestion, PeerExchangeAnswer)


def decode_peer_message(raw: bytes, kind: type[PeerExchangeMessage]) -> PeerExchangeMessage:
    """The message in the body of a frame. Raises ``OversizedError`` or ``MalformedError``."""
    return wire.decode(raw, kind, max_bytes=limits.PEER_MESSAGE_BYTES)
