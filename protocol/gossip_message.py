"""The id of a GossipSub message: what makes two messages one, and what IHAVE and IWANT name."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from typing import Final

MESSAGE_ID_BYTES: Final = 24


def gossip_message_id(topic: str, data: bytes) -> bytes:
    """Base64, as ASCII, of the first 18 bytes of SHA-256(topic ‖ 0x00 ‖ data).

    So the same announcement from two publishers is one message. It is text since some libraries carry ids as text.
    """
    return b64encode(sha256(topic.encode() + b"\0" + data).digest()[:18])
