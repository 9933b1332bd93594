"""A run over the band of seeded runs as one HTML file that loads nothing else."""

from __future__ import annotations

import html
from collections.abc import Sequence

from node.report.expected_curves import PREFIX, AgainstExpected, ComparedWindow
from node.report.parts import chart, details, page, spaced, table

BAND = (("expected, high", "high"), ("expected", "mean"), ("expected, low", "low"))


def against_page(found: AgainstExpected, *, name: str) -> str:
    """Returns the whole file. ``name`` is safe to show."""
    rows = [_row(f"rounds {each.first_round} to {each.last_round}", each) for each in found.windows]
    rows += [_row(task, each) for task, each in found.tasks.items()]
    parts = [
        f'<section class="hero compared" aria-label="Against the band"><div><p class="lead">'
        f"{html.escape(spaced(found.sentence))}</p></div></section>",
        '<section class="card-of-charts"><h2>Reward by round</h2><div class="charts">'
        f"{chart('mean', 'Mean over all tasks and a window of rounds')}</div></section>",
        '<section class="details" aria-label="Details">',
        details("In figures", table(("of", "this run", "expected", ""), rows, "No round is recorded."), is_open=True),
        "</section>",
    ]
    charts = {"chart-mean": {"lines": _lines(found.windows, name), "max": None, "by": "step", "format": "score"}}
    return page(
        f"starling: {name} against {PREFIX}{found.expected}", "a run and what is expected", parts, {"charts": charts}
    )


def _lines(windows: Sequence[ComparedWindow], name: str) -> list[dict[str, object]]:
    at = [each.last_round for each in windows]
    lines: list[dict[str, object]] = [{"name": name, "x": at, "values": [each.reward for each in windows]}]
    return lines + [
        {"name": title, "x": at, "values": [getattr(each.expected, end) for each in windows]} for title, end in BAND
    ]


def _row(title: str, window: ComparedWindow) -> tuple[str, str, str, str]:
    said = {-1: "below", 0: "", 1: "above"}[window.side]
    return title, f"{window.reward:.3f}", f"{window.expected.low:.3f} to {window.expected.high:.3f}", said
