"""The messages of ``/starling/lend/1``, by which a donor offers its machine to the owner that invited it.

    donor → hello;  owner → terms, or refused;  then ``/starling/engine/1`` on the same stream, the owner as its client,
    or ``/starling/stage/1`` where the terms ask for layers

Each is one frame of ``protocol.streams.framing``. The donor opens the stream, since it may be behind a router and the
owner is who was dialled. After the terms the donor sends only answers of the engine's protocol.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from protocol import limits, wire
from protocol.errors import VersionError
from protocol.messages import Hash16, Hash32, Name

LEND_PROTOCOL: Final = "/starling/lend/1"
LEND_MAJOR: Final = 1
LEND_MINOR: Final = 1
LAYERS_MINOR: Final = 1  # the first with terms that ask for layers

_Version = Annotated[int, Meta(ge=0, le=2**16 - 1)]
_Text = Annotated[str, Meta(max_length=limits.LEND_TEXT_CHARACTERS)]


class LendHello(Struct, frozen=True, array_like=True, tag="hello"):
    """The first message. ``secret`` is that of the invitation: it counts once, for the peer that shows it first."""

    major: _Version
    minor: _Version
    secret: Hash32
    name: Name  # for people; shown escaped

    def __repr__(self) -> str:
        return f"LendHello({self.major}.{self.minor}, …)"


class LendTerms(Struct, frozen=True, array_like=True, tag="terms"):
    """What the donor is to load: a model of this family, with the weights that its files have."""

    model: _Text  # as the owner names it: built-in, a hub id, or a folder of the owner's
    adapter_rank: Annotated[int, Meta(ge=0, le=65_536)]  # 0: every weight is trained
    four_bit: bool
    chat: Name  # whether prompts are written by the tokenizer's chat template: "auto", "on", "off"
    family: Hash16
    layers: Literal["", "float32", "bfloat16"] = ""  # the dtype in which it holds some of them; empty: it generates


class LendRefused(Struct, frozen=True, array_like=True, tag="refused"):
    """The owner does not take this donor, or not now; it ends the stream."""

    reason: Name  # a ``LendRefusal``, or one that a later minor version adds
    message: _Text  # for people; shown escaped


LendAnswer = LendTerms | LendRefused


class LendRefusal(StrEnum):
    """Why an owner does not take a donor."""

    VERSION = "version"  # another major version of this protocol
    NOT_INVITED = "not_invited"  # neither on the list nor with the secret of an invitation that is open
    EXPIRED = "expired"  # the invitation was not used in time
    DROPPED = "dropped"  # it sent what did not hold, or the owner put it out
    NOT_READY = "not_ready"  # no learner runs yet, or the owner's node is paused: ask again


FINAL_REFUSALS: Final = frozenset(set(LendRefusal) - {LendRefusal.NOT_READY})


def decode_lend_hello(raw: bytes) -> LendHello:
    """The hello in the body of a frame. Raises ``OversizedError`` or ``MalformedError``."""
    return wire.decode(raw, LendHello, max_bytes=limits.LEND_MESSAGE_BYTES)


def decode_lend_answer(raw: bytes) -> LendAnswer:
    """The answer in the body of a frame. Raises ``OversizedError`` or ``MalformedError``."""
    kinds: Any = LendAnswer
    answer: LendAnswer = wire.decode(raw, kinds, max_bytes=limits.LEND_MESSAGE_BYTES)
    return answer


def check_lend_version(hello: LendHello, *, layers: bool = False) -> None:
    """Raises ``VersionError`` for another major version than ours, and for one that knows no ``layers`` where these are
    asked for."""
    if hello.major != LEND_MAJOR or (layers and hello.minor < LAYERS_MINOR):
        raise VersionError(
            f"{LEND_PROTOCOL} of version {hello.major}.{hello.minor}, ours is {LEND_MAJOR}.{LEND_MINOR}: install the "
            "same version of starling on both sides"
        )
