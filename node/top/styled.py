"""Converts spans for the terminal library: every text is escaped here, and none is read as markup."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text
from textual.content import Content

from node.printable import printable
from node.top.text import MAX_TEXT_CHARACTERS, Line, Span, Style

LOOKS: dict[Style, str] = {
    "": "",
    "title": "bold",
    "faint": "dim",
    "good": "ansi_green",
    "warn": "bold ansi_magenta",
    "bad": "bold ansi_red",
}
CELL_LOOKS = {style: look.replace("ansi_", "") for style, look in LOOKS.items()}  # Rich's names


def content(lines: Iterable[Line]) -> Content:
    """Returns lines for a ``Static``."""
    styled = (
        Content.assemble(*((printable(span.text, MAX_TEXT_CHARACTERS), LOOKS[span.style]) for span in line))
        for line in lines
    )
    return Content("\n").join(styled)


def cell(span: Span) -> Text:
    """Returns one cell of a ``DataTable``."""
    return Text(printable(span.text, MAX_TEXT_CHARACTERS), CELL_LOOKS[span.style], no_wrap=True, end="")
