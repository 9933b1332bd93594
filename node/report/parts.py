"""The parts that a report and a comparison are made of: one HTML file that loads nothing else.

All text of a run is escaped: as text in the tables, and in the data so that it cannot end the script that holds it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from node.api.page_files import asset_text, bundled_script
from node.api.types import Timeline
from node.printable import printable

NARROW_SPACE = "\u202f"  # between thousands, as the web page has it
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title><link rel="icon" href="data:,">
<style>{style}</style></head><body><header><h1>{title}</h1><p id="subtitle">{subtitle}</p></header><main>
"""
NOSCRIPT = "<noscript>The pictures need JavaScript; every figure stands below.</noscript>"


def section_of_page(named: str) -> str:
    """Returns the section of the web page with this id or class."""
    found = re.search(rf'<section [^>]*="{named}".*?</section>', asset_text("index.html"), flags=re.DOTALL)
    assert found is not None, named
    return found[0]


def page(title: str, subtitle: str, parts: Iterable[str], facts: Mapping[str, object]) -> str:
    """Returns the whole file. ``facts`` is what ``report.js`` draws."""
    head = HEAD.format(title=html.escape(title), subtitle=html.escape(subtitle), style=asset_text("page.css"))
    data = _in_script(msgspec.json.encode({"charts": {}} | dict(facts)))
    return "\n".join(
        [
            head,
            NOSCRIPT,
            *parts,
            "</main>",
            f'<script type="application/json" id="facts">{data}</script>',
            f'<script type="module">{bundled_script("report")}</script></body></html>\n',
        ]
    )


def grouped(count: int) -> str:
    return f"{count:,}".replace(",", NARROW_SPACE)


def spaced(text: str) -> str:
    """Returns text with a narrow space instead of a comma between thousands."""
    return THOUSANDS.sub(NARROW_SPACE, text)


def signed(change: float) -> str:
    """Returns a change of a reward in two digits with its sign; ± where it rounds to none."""
    shown = f"{abs(change):.2f}"
    return f"±{shown}" if shown == "0.00" else f"{'+' if change > 0 else '−'}{shown}"


def details(title: str, inside: str, *, is_open: bool = False) -> str:
    return f"<details{' open' if is_open else ''}><summary>{html.escape(title)}</summary><div>{inside}</div></details>"


def listed(rows: Iterable[tuple[str, str, str]]) -> str:
    """Returns (title, value, aside) as a list of figures."""
    shown = (
        f"<div><dt>{html.escape(title)}</dt><dd><b>{html.escape(printable(value, 400))}</b> "
        f'<span class="aside">{html.escape(printable(aside, 400))}</span></dd></div>'
        for title, value, aside in rows
    )
    return f"<dl>{''.join(shown)}</dl>"


def chart(name: str, title: str) -> str:
    shown = html.escape(printable(title, 64))
    return f'<figure><figcaption>{shown}</figcaption><div class="chart" id="chart-{name}"></div></figure>'


def table(header: Sequence[str], rows: Iterable[Sequence[str]], none: str) -> str:
    cells = ["".join(f"<td>{html.escape(printable(cell, 400))}</td>" for cell in row) for row in rows]
    if not cells:
        return f'<p class="empty">{html.escape(none)}</p>'
    titles = "".join(f'<th scope="col">{html.escape(title)}</th>' for title in header)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f'<div class="scrolled"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'


def lines(timeline: Timeline, names: set[str]) -> list[dict[str, object]]:
    """Returns the series of these names over time, as the page's charts take them; those without a value are left
    out."""
    return [
        {"name": series.name.replace("_", " "), "x": timeline.time_seconds, "values": series.values}
        for series in timeline.series
        if series.name in names and any(value is not None for value in series.values)
    ]


def _in_script(json: bytes) -> str:
    """Returns JSON that cannot end the HTML element that holds it."""
    return json.decode().replace("<", "\\u003c")
