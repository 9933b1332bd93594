"""A code that is read out over the telephone, and the letter that it opens: an invite, for one newcomer, for minutes.

    code    = 15 random digits and Damm's check digit: 49.8 bits, which no other machine ever receives
    secrets = scrypt(the 16 digits, "starling/spoken/1\\0", N = 2^15, r = 8, p = 4), 80 bytes:
              lookup (16) ‖ pre-shared key (32) ‖ key of the letter (32)
    letter  = ChaCha20-Poly1305(key of the letter, nonce 0, text of the invite, associated data: lookup)

A member that can be dialled holds the letter. Under the pre-shared key it can be asked for it, by the lookup; without
the code it cannot read it. The salt is the same everywhere, because the two ends share nothing but the code: 10^15
codes cannot be computed in advance. The nonce may be 0 since a key seals one letter.
(scrypt: RFC 7914; ChaCha20-Poly1305: RFC 8439; the check digit: Damm, Total anti-symmetrische Quasigruppen, 2004.)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from protocol.errors import IntegrityError, MalformedError

CODES: Final = 10**15
CODE_DIGITS: Final = 16
_SALT: Final = b"starling/spoken/1\0"
_COST, _BLOCK, _PARALLEL = 1 << 15, 8, 4  # 128 · N · r = 33.6 MB
_MAX_BYTES: Final = 64_000_000
_NONCE: Final = bytes(12)
_BETWEEN: Final = re.compile(r"[\s.\-]+")  # what people write between groups of digits
_SPOKEN: Final = re.compile(r"\s*(?:[0-9][\s.\-]*){10,}(?:@.*)?", re.DOTALL)
_DAMM: Final = (
    "0317598642",
    "7092154863",
    "4206871359",
    "1750983426",
    "6123045978",
    "3674209581",
    "5869720134",
    "8945362017",
    "9438617205",
    "2581436790",
)


@dataclass(frozen=True, slots=True)
class SpokenInvite:
    """A code whose check digit is right, and where it is to be used. Its ``repr`` does not show the code."""

    code: str = field(repr=False)  # 16 digits
    at: str  # as it was typed; empty: on the local network

    @property
    def text(self) -> str:
        """What ``read_spoken`` reads again."""
        return shown_code(self.code) + (f"@{self.at}" if self.at else "")


@dataclass(frozen=True, slots=True, repr=False)
class SpokenSecrets:
    """What both sides derive from a code. The holder of a letter gets ``lookup`` and ``psk``, and never ``key``."""

    lookup: bytes  # 16
    psk: bytes  # 32
    key: bytes  # 32


def new_code(random_below: Callable[[int], int]) -> str:
    """Returns a code. ``random_below(n)`` is a random number from 0 to n - 1, such as ``secrets.randbelow``."""
    digits = f"{random_below(CODES):0{CODE_DIGITS - 1}d}"
    return digits + _check_digit(digits)


def shown_code(code: str) -> str:
    """Returns a code in groups of four digits, as it is printed, read out and typed."""
    return "-".join(code[at : at + 4] for at in range(0, CODE_DIGITS, 4))


def is_spoken(text: str) -> bool:
    """Whether ``text`` is meant as a code, right or mistyped, and neither an invite nor the name of a file."""
    return _SPOKEN.fullmatch(text) is not None


def read_spoken(text: str) -> SpokenInvite:
    """Reads CODE or CODE@WHERE. Blanks, full stops and hyphens between the digits do not matter.

    Raises ``MalformedError``, which does not repeat the digits: a wrong digit, and two neighbours that were exchanged,
    are always found, nine of ten other mistakes too.
    """
    written, _, at = text.partition("@")
    code = _BETWEEN.sub("", written)
    if not (code.isascii() and code.isdecimal() and len(code) == CODE_DIGITS):
        raise MalformedError(f"a code has {CODE_DIGITS} digits, and {len(code)} characters were typed: compare them")
    if _check_digit(code) != "0":
        raise MalformedError("a digit is wrong, or two are exchanged: have the code read out again")
    return SpokenInvite(code, at.strip())


def secrets_of(code: str) -> SpokenSecrets:
    """Derives the secrets of a code. It is slow on purpose: about 0.4 s of a core, and 34 MB of memory."""
    derived = hashlib.scrypt(code.encode(), salt=_SALT, n=_COST, r=_BLOCK, p=_PARALLEL, dklen=80, maxmem=_MAX_BYTES)
    return SpokenSecrets(derived[:16], derived[16:48], derived[48:])


def seal_letter(secrets: SpokenSecrets, invite: str) -> bytes:
    """Returns the letter that holds the text of an invite: 16 bytes longer than it."""
    return ChaCha20Poly1305(secrets.key).encrypt(_NONCE, invite.encode(), secrets.lookup)


def open_letter(secrets: SpokenSecrets, letter: bytes) -> str:
    """Returns the text in a letter, which is not judged. Raises ``IntegrityError`` for a letter that was not sealed
    under this code."""
    try:
        return ChaCha20Poly1305(secrets.key).decrypt(_NONCE, letter, secrets.lookup).decode(errors="replace")
    except InvalidTag:
        raise IntegrityError("the letter was not sealed under this code: whoever holds it has altered it") from None


def _check_digit(digits: str) -> str:
    """Returns Damm's check digit; "0" for digits that end in theirs."""
    check = "0"
    for digit in digits:
        check = _DAMM[int(check)][int(digit)]
    return check
