"""The messages of ``/starling/dialback/1``: can the asker be dialled?

    asker → question;  other → answer

Each is one frame of ``protocol.streams.framing``. The other dials only the IP address from which the asker is
connected, on a new connection, and there the asker must prove its peer id.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

from msgspec import Meta, Struct

from protocol import limits, wire

DIAL_BACK_PROTOCOL: Final = "/starling/dialback/1"

_Port = Annotated[int, Meta(ge=1, le=65535)]
_Ports = Annotated[tuple[_Port, ...], Meta(max_length=limits.DIAL_BACK_PORTS)]


class DialBackQuestion(Struct, frozen=True, array_like=True):
    ports: _Ports  # TCP, at which the asker listens


class DialBackAnswer(Struct, frozen=True, array_like=True):
    dialled: bool  # False: the other did not try, since it was asked too often or sees no address of the asker
    seen_ip: Annotated[str, Meta(max_length=45)]  # the address from which the asker is connected; empty if unknown
    reached: _Ports  # of those asked for, at which the asker answered


DialBackMessage = TypeVar("DialBackMessage", DialBackQuestion, DialBackAnswer)


def decode_dial_back_message(raw: bytes, kind: type[DialBackMessage]) -> DialBackMessage:
    """Returns the message of ``kind`` in the body of a frame, with every field within its bounds.

    Raises ``OversizedError`` above ``limits.DIAL_BACK_BYTES``, ``MalformedError`` for anything but such a message.
    """
    return wire.decode(raw, kind, max_bytes=limits.DIAL_BACK_BYTES)
