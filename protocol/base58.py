"""Base58 as Bitcoin and libp2p write it: no two characters look alike, and a chat program formats none of them.

A leading zero byte is a leading ``1``, so that ``to_bytes(to_text(content)) == content`` for any bytes, and the reverse
for any text. Both functions take time quadratic in the length, which callers bound.
"""

from __future__ import annotations

from typing import Final

from protocol.errors import MalformedError

ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_DIGITS: Final = {character: digit for digit, character in enumerate(ALPHABET)}


def to_text(content: bytes) -> str:
    """The text that stands for ``content``."""
    zeros = len(content) - len(content.lstrip(b"\0"))
    number = int.from_bytes(content, "big")
    characters: list[str] = []
    while number:
        number, digit = divmod(number, 58)
        characters.append(ALPHABET[digit])
    return ALPHABET[0] * zeros + "".join(reversed(characters))


def to_bytes(text: str) -> bytes:
    """The bytes that ``text`` stands for. Raises ``MalformedError``, which never repeats the text: it may be secret."""
    number = 0
    for position, character in enumerate(text):
        digit = _DIGITS.get(character)
        if digit is None:
            raise MalformedError(f"character {position + 1} of {len(text)} does not belong to base58")
        number = number * 58 + digit
    zeros = len(text) - len(text.lstrip(ALPHABET[0]))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")
