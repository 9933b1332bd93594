"""Text from peers and processes, made safe to show: it moves no cursor, sets no colour, fakes no line."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # controls, direction marks, unassigned


def printable(text: str, max_characters: int = 200) -> str:
    """``text`` on one line of at most ``max_characters``, what shows nothing as its code; … where it was cut."""
    shown = text[:max_characters]
    if not shown.isprintable():  # which is stricter, and quick
        shown = "".join(map(_escaped, shown))
    is_cut = len(text) > max_characters or len(shown) > max_characters
    return shown[: max_characters - 1] + "…" if is_cut else shown


@lru_cache(maxsize=4096)
def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE_CATEGORIES:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
