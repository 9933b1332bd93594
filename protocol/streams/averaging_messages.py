"""The messages of ``/starling/averaging/1``, by which two nodes exchange weights to average them.

    proposer  propose                        have or abandon
    partner             accept or decline    have or abandon

Each is one frame of ``protocol.streams.framing``. Between ``accept`` and ``have`` each side fetches the other's blob.
``swarm.averaging.pairing_rules`` decides what is sent.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

from protocol import limits, wire
from protocol.identity import PEER_ID_BYTES
from protocol.messages import Counter, Hash16, Hash32, Name

AVERAGING_PROTOCOL: Final = "/starling/averaging/1"


class Offer(Struct, frozen=True, array_like=True):
    """The weights that one side has ready, as a blob that stays in its store until the exchange is over."""

    family: Hash16
    layout: Hash16  # digest of names and shapes, ``TensorLayout.digest``
    encoding: Name  # how the blob holds them
    step: Counter  # outer steps taken
    blob: Hash32
    size: Annotated[int, Meta(ge=1, le=limits.BLOB_BYTES)]  # bytes


class Propose(Struct, frozen=True, array_like=True, tag="propose"):
    exchange: Hash16  # drawn at random by the proposer
    offer: Offer


class Accept(Struct, frozen=True, array_like=True, tag="accept"):
    offer: Offer


class Decline(Struct, frozen=True, array_like=True, tag="decline"):
    reason: Name  # a ``DeclineReason``, or one that a later minor version adds
    seeking: Annotated[str, Meta(max_length=PEER_ID_BYTES)] = ""  # another peer that the sender declined a moment ago


class Have(Struct, frozen=True, array_like=True, tag="have"):
    """The sender holds the receiver's weights, verified and fit to average with.

    As the first message of a new stream it also asks whether the receiver has averaged.
    """

    exchange: Hash16


class Abandon(Struct, frozen=True, array_like=True, tag="abandon"):
    """The sender has not averaged with the receiver's weights, and will not."""

    exchange: Hash16
    because: Annotated[str, Meta(max_length=limits.REASON_BYTES)]


AveragingMessage = Propose | Accept | Decline | Have | Abandon


class DeclineReason(StrEnum):
    """Why a proposal is declined."""

    NOT_NOW = "not_now"  # the receiver offers nothing at the moment
    BUSY = "busy"  # it is in an exchange with another peer, or has proposed to one
    CROSSED = "crossed"  # its own proposal to the proposer is under way, and its peer id is the smaller of the two
    FAILED_BEFORE = "failed_before"  # an exchange with this peer was abandoned since the offer was made
    OTHER_FAMILY = "other_family"
    OTHER_LAYOUT = "other_layout"
    OTHER_ENCODING = "other_encoding"
    STEPS_APART = "steps_apart"  # one of the two is too many outer steps behind
    TOO_LARGE = "too_large"  # the blob


def decode_averaging_message(raw: bytes) -> AveragingMessage:
    """The message in the body of a frame. Raises ``OversizedError`` or ``MalformedError``."""
    message: AveragingMessage = wire.decode(
        raw,
        AveragingMessage,  # type: ignore[arg-type]  # a union is not a class to mypy
        max_bytes=limits.AVERAGING_MESSAGE_BYTES,
    )
    return message
