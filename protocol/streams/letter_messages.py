"""Letters: how an invite waits at a member until the newcomer asks for it, which knows a code and is no member yet.

In a private cluster's handshake, in the place of a greeting, on a connection under the letter's own pre-shared key:

    newcomer → request;  member → answer, and the connection ends

On ``/starling/letters/1``, between members:

    asker → a letter to be held, or a question about one that it left;  other → receipt

Each is one frame of ``protocol.streams.framing``. The letter is sealed (``protocol.cluster.spoken_code``): who holds it
cannot read it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from protocol import limits, wire
from protocol.messages import Hash16, Hash32

LETTERS_PROTOCOL: Final = "/starling/letters/1"
_REQUEST_BEGINS: Final = b"\x92\xa6letter"  # an array of two, the first a text; a member's greeting begins otherwise

LetterState = Literal["waiting", "taken", "expired", "unknown", "full"]
Letter = Annotated[bytes, Meta(max_length=limits.LETTER_BYTES)]


class LetterRequest(Struct, frozen=True, array_like=True, tag="letter"):
    lookup: Hash16


class LetterAnswer(Struct, frozen=True, array_like=True):
    state: LetterState  # before this request; "taken" if another peer took it
    letter: Letter  # empty unless "waiting"


class HoldLetter(Struct, frozen=True, array_like=True, tag="hold"):
    """Its text forms show nothing, since the pre-shared key is a secret."""

    lookup: Hash16
    psk: Hash32
    letter: Annotated[bytes, Meta(min_length=1, max_length=limits.LETTER_BYTES)]
    seconds: Annotated[int, Meta(ge=1, le=limits.LETTER_SECONDS)]  # from now, by the holder's clock

    def __repr__(self) -> str:
        return "HoldLetter(…)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return []


class AskAboutLetter(Struct, frozen=True, array_like=True, tag="ask"):
    lookup: Hash16


class LetterReceipt(Struct, frozen=True, array_like=True):
    """The state of a letter, for the member that left it. "full": it is not held."""

    state: LetterState
    taken_by: Annotated[str, Meta(max_length=64)] = ""  # peer id, proved on the connection


LetterMessage = TypeVar("LetterMessage", LetterRequest, LetterAnswer, HoldLetter, AskAboutLetter, LetterReceipt)


def is_letter_request(greeting: bytes) -> bool:
    """Whether the first frame of a handshake asks for a letter; then it is a ``LetterRequest``."""
    return greeting.startswith(_REQUEST_BEGINS)


def encode_letter_message(message: LetterRequest | LetterAnswer) -> bytes:
    """The body of a frame."""
    return msgspec.msgpack.encode(message)


def decode_letter_message(raw: bytes, kind: type[LetterMessage]) -> LetterMessage:
    """The message in the body of a frame. Raises ``OversizedError`` or ``MalformedError``."""
    return wire.decode(raw, kind, max_bytes=limits.LETTER_MESSAGE_BYTES)


def decode_letter_question(raw: bytes) -> HoldLetter | AskAboutLetter:
    """What a member asks, in the body of a frame. Raises as above."""
    question: HoldLetter | AskAboutLetter = wire.decode(
        raw,
        HoldLetter | AskAboutLetter,  # type: ignore[arg-type]  # a union is not a class to mypy
        max_bytes=limits.LETTER_MESSAGE_BYTES,
    )
    return question
