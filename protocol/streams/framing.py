"""The frame of every message between two connected peers: u32 length (big-endian) ‖ body.

A receiver reads ``LENGTH_BYTES``, checks the length with ``checked_body_length`` before it allocates anything, and
then reads the body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from protocol.errors import OversizedError

LENGTH_BYTES: Final = 4


def framed(body: bytes) -> bytes:
    """The frame of an encoded message."""
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def framed_message(message: Struct | Sequence[Struct]) -> bytes:
    """The frame of a message, encoded as MessagePack."""
    return framed(msgspec.msgpack.encode(message))


def checked_body_length(prefix: bytes | bytearray, *, max_bytes: int, what: str) -> int:
    """The length of the body that follows ``prefix``, the first ``LENGTH_BYTES`` of a frame.

    Raises ``OversizedError`` for more than ``max_bytes``; ``what`` names the protocol in its message.
    """
    length = int.from_bytes(prefix, "big")
    if length > max_bytes:
        raise OversizedError(f"a message of {length} bytes in {what}; at most {max_bytes} are allowed")
    return length
