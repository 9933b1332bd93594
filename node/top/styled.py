"""Spans as the terminal library draws them: every text is made printable here, and none is markup."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text
from textual.content import Content

from node.printable import printable
from node.top.text import TEXT_CHARACTERS, Line, Span, Style

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
    """Lines for a ``Static``."""
    styled = (
        Content.assemble(*((printable(span.text, TEXT_CHARACTERS), LOOKS[span.style]) for span in line))
        for line in lines
    )
    return Content("\n").join(styled)


def cell(span: Span) -> Text:
    """One cell of a ``DataTable``."""
    return Text(printable(span.text, TEXT_CHARACTERS), CELL_LOOKS[span.style], no_wrap=True, end="")
