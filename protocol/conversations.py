"""The actions of a conversation within a completion, and the digests by which a receiver compares its own replay.

No observation travels. Whoever has the environment plays the actions in it, and compares a chain of digests, of the
first text and of what followed each action:

    d_0 = H("starling/conversation/1" ‖ 0x00 ‖ MessagePack of the prompt's reference ‖ reward ‖ first text)
    d_t = H(d_{t-1} ‖ u32 length of the action ‖ action ‖ done ‖ reward ‖ observation)

H is the first 16 bytes of SHA-256. Texts are UTF-8, an action as the environment gets it. ``done`` is one byte, 1 where
the environment ended the episode. The reward is what the actions so far have earned, a little-endian float32. So equal
digests mean equal conversations up to there, and the first that differs names the turn.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from protocol.messages import PromptRef

DIGEST_BYTES: Final = 16
_DOMAIN: Final = b"starling/conversation/1\0"


@dataclass(frozen=True, slots=True)
class Action:
    """One action: consecutive tokens of its completion. ``decode_group`` guarantees at least one token, and that the
    last has no text where it ``stopped``."""

    tokens: int
    stopped: bool  # the end-of-sequence token was sampled; otherwise the limit on new tokens was reached
    digest: bytes  # 16 bytes, claimed: d_t of what followed


def beginning_digest(ref: PromptRef, first_text: str, reward: float) -> bytes:
    """Returns d_0."""
    return _digest(_DOMAIN, msgspec.msgpack.encode(ref), _float32(reward), first_text.encode())


def turn_digest(before: bytes, action: str, observation: str, reward: float, *, done: bool) -> bytes:
    """Returns d_t from d_{t-1}, ``before``."""
    said = action.encode()
    parts = (before, len(said).to_bytes(4, "big"), said, bytes([done]), _float32(reward), observation.encode())
    return _digest(*parts)


def first_difference(claimed: Sequence[bytes], found: Sequence[bytes]) -> int | None:
    """Returns the first t whose d_t differs or that only one of the two has, 0 for the first text; None if all are
    equal."""
    for turn, (theirs, ours) in enumerate(zip(claimed, found, strict=False)):
        if theirs != ours:
            return turn
    return None if len(claimed) == len(found) else min(len(claimed), len(found))


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()[:DIGEST_BYTES]


def _float32(value: float) -> bytes:
    return struct.pack("<f", value)
