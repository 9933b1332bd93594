"""Base58 as Bitcoin and libp2p write it: no character that looks like another, none that a chat program formats.

A leading zero byte is a leading ``1``, so that ``decode(encode(content)) == content`` for any bytes, and the other way
round. Both take time quadratic in the length: callers bound it.
"""

from __future__ import annotations

from typing import Final

from protocol.errors import MalformedError

ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_DIGITS: Final = {character: digit for digit, character in enumerate(ALPHABET)}


def encode(content: bytes) -> str:
    """The characters of ``content``."""
    zeros = len(content) - len(content.lstrip(b"\0"))
    number = int.from_bytes(content, "big")
    characters: list[str] = []
    while number:
        number, digit = divmod(number, 58)
        characters.append(ALPHABET[digit])
    return ALPHABET[0] * zeros + "".join(reversed(characters))


def decode(text: str) -> bytes:
    """The bytes that ``text`` stands for. Raises ``MalformedError``, which never repeats the text: a secret, maybe."""
    number = 0
    for position, character in enumerate(text):
        digit = _DIGITS.get(character)
        if digit is None:
            raise MalformedError(f"character {position + 1} of {len(text)} is none of base58's")
        number = number * 58 + digit
    zeros = len(text) - len(text.lstrip(ALPHABET[0]))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")
