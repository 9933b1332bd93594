"""Escapes text from peers and processes, so that it moves no cursor, sets no colour and fakes no line when shown."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # controls, direction marks, unassigned


def printable(text: str, max_characters: int = 200) -> str:
    """Returns ``text`` as one line of at most ``max_characters``: characters that do not show are replaced by their
    codes, and … marks where the text was cut."""
    shown = text[:max_characters]
    if not shown.isprintable():  # a stricter test, and a quick one
        shown = "".join(map(_escaped, shown))
    is_cut = len(text) > max_characters or len(shown) > max_characters
    return shown[: max_characters - 1] + "…" if is_cut else shown


def printable_lines(text: str, max_characters: int, max_lines: int = 40) -> str:
    """Returns ``text`` with its line ends, and otherwise escaped and cut as by ``printable``. Further lines than
    ``max_lines`` are left out, which … marks too."""
    # A cut before the split bounds the work; each line can only grow by being escaped.
    lines = text[:max_characters].replace("\r\n", "\n").split("\n")
    shown = "\n".join(printable(line, max_characters) for line in lines[:max_lines])
    is_cut = len(text) > max_characters or len(lines) > max_lines or len(shown) > max_characters
    return shown[: max_characters - 1] + "…" if is_cut else shown


def one_line(text: str, max_characters: int = 200) -> str:
    """As ``printable``; line breaks and other runs of white space become one space, for texts of several lines."""
    return printable(" ".join(text.split()), max_characters)


@lru_cache(maxsize=4096)
def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE_CATEGORIES:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
