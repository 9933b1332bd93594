"""Lines of text for a terminal of a given width: styled spans, tables, bars over time. Pure functions that depend on no
terminal library.

The text of a span is escaped (``node.printable``), so that it moves no cursor, and takes exactly the cells that it is
given, in any script. Styles are few and named by their meaning.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rich.cells import cell_len, set_cell_size

from node.printable import one_line, printable

Style = Literal["", "title", "faint", "good", "warn", "bad"]
LEVELS = " ▁▂▃▄▅▆▇█"
GAP_CELLS = 2  # between columns
MAX_TEXT_CHARACTERS = 2000


class Span(NamedTuple):
    """Text in one style."""

    text: str
    style: Style = ""


Line = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    cells: int  # at least
    grows: int = 0  # its share of the cells that are left over
    right: bool = False


def fitted(text: str, cells: int, *, right: bool = False) -> str:
    """Returns ``text`` in exactly ``cells`` cells, with an ellipsis where it is cut."""
    text = printable(text, MAX_TEXT_CHARACTERS)
    length = cell_len(text)
    if length > cells:
        return set_cell_size(text, cells - 1) + "…" if cells > 0 else ""
    return " " * (cells - length) + text if right else text + " " * (cells - length)


def wrapped(text: str, cells: int, max_lines: int) -> list[str]:
    """Returns ``text`` in at most ``max_lines`` lines of at most ``cells`` cells, with an ellipsis where it is cut."""
    text = one_line(text, MAX_TEXT_CHARACTERS)
    wide = cell_len(text) > len(text)  # textwrap counts characters
    lines = textwrap.wrap(text, max(1, cells // 2 if wide else cells)) or [""]
    if len(lines) > max_lines:
        lines = [*lines[: max_lines - 1], fitted(lines[max_lines - 1] + "…", cells).rstrip()]
    return lines


def widths(columns: Sequence[Column], cells: int, gap: int = GAP_CELLS) -> list[int]:
    """Returns the cells of each column. The table is ``cells`` wide, or wider where its columns need more."""
    spare = max(0, cells - sum(column.cells for column in columns) - gap * (len(columns) - 1))
    shares = sum(column.grows for column in columns)
    return [column.cells + (spare * column.grows // shares if shares else 0) for column in columns]


def table(columns: Sequence[Column], rows: Sequence[Sequence[Span]], cells: int) -> list[Line]:
    """Returns a line of titles and one line a row."""
    column_cells = widths(columns, cells)
    heads = tuple(Span(column.title, "title") for column in columns)
    return [_row(columns, column_cells, row) for row in (heads, *rows)]


def _row(columns: Sequence[Column], column_cells: Sequence[int], row: Sequence[Span]) -> Line:
    line: list[Span] = []
    for column, width, span in zip(columns, column_cells, row, strict=True):
        line += [Span(" " * GAP_CELLS)] * bool(line) + [Span(fitted(span.text, width, right=column.right), span.style)]
    return tuple(line)


def bars(values: Sequence[float | None], cells: int, *, high: float, height: int = 1) -> list[str]:
    """Returns values from 0 to ``high`` as bars, oldest at the left, in ``height`` lines from the top. A value of None
    gives no bar, any other value at least the thinnest one."""
    steps = height * (len(LEVELS) - 1)
    levels = [
        0 if value is None else max(1, round(steps * min(1.0, max(0.0, value / high)))) if high > 0 else 1
        for value in resampled(values, cells)
    ]
    return [
        "".join(LEVELS[max(0, min(len(LEVELS) - 1, level - (len(LEVELS) - 1) * below))] for level in levels)
        for below in reversed(range(height))
    ]


def share_bar(share: float, cells: int) -> str:
    """Returns a share of 0 to 1 as a bar; a full one has ``cells``."""
    return "█" * round(cells * min(1.0, max(0.0, share)))


def resampled(values: Sequence[float | None], cells: int) -> list[float | None]:
    """Returns at most ``cells`` values: the means of neighbours."""
    if len(values) <= cells:
        return list(values)
    means: list[float | None] = []
    for cell in range(cells):
        some = values[len(values) * cell // cells : len(values) * (cell + 1) // cells]
        present = [value for value in some if value is not None]
        means.append(sum(present) / len(present) if present else None)
    return means


def number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def percent(share: float | None, digits: int = 0) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f} %"
