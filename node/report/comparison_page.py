"""Two runs as one HTML file that loads nothing else: a bar for each task of either run, and their curves in one chart
each."""

from __future__ import annotations

import html
from collections.abc import Sequence

from node.report.comparison import ComparedTask, Comparison
from node.report.facts import RunFacts
from node.report.parts import chart, details, page, signed, spaced, table

MAX_CHARTS = 24  # of tasks; those that differ most
BAR = '<rect class="{kind}" x="0" y="{y}" width="{share:.1f}%" height="8" rx="1"/>'


def comparison_page(comparison: Comparison) -> str:
    """Returns the whole file."""
    first, second = comparison.names
    drawn = comparison.tasks[:MAX_CHARTS]
    charts: dict[str, object] = {"chart-mean": _curves(comparison, None)}
    charts |= {f"chart-task-{index}": _curves(comparison, task.task) for index, task in enumerate(drawn)}
    figures = "".join(chart(f"task-{index}", task.task) for index, task in enumerate(drawn))
    parts = [
        f'<section class="hero compared" aria-label="Both runs"><div><p class="lead">'
        f"{html.escape(spaced(comparison.sentence))}</p>{_legend(comparison.names)}</div>"
        f'<ul class="skills pairs">{"".join(map(_bar, comparison.tasks))}</ul></section>',
        f'<section class="card-of-charts"><h2>Reward by round, running mean</h2>'
        f'<div class="charts">{chart("mean", "Mean over all tasks, each round")}{figures}</div></section>',
        '<section class="details" aria-label="Details">',
        details(
            "Both runs in figures",
            table(("of", first, second), [(row.what, spaced(row.a), spaced(row.b)) for row in comparison.rows], ""),
            is_open=True,
        ),
        details("Reward by task", _rewards(comparison)),
        "</section>",
    ]
    return page(f"starling: {first} and {second}", "two runs compared", parts, {"charts": charts})


def _legend(names: Sequence[str]) -> str:
    keys = (
        f'<span><svg class="skill" width="12" height="12" aria-hidden="true"><rect class="{kind}" width="12" '
        f'height="12"/></svg> {html.escape(name)}</span>'
        for kind, name in zip(("itself", "others"), names, strict=True)
    )
    return f'<p class="keys">Mean reward at the end: {"".join(keys)}</p>'


def _bar(task: ComparedTask) -> str:
    """The reward of both runs at their ends."""
    shown = [
        BAR.format(kind=kind, y=y, share=100 * max(0.0, min(1.0, last)))
        for kind, y, last in (("itself", 0, task.a_last), ("others", 10, task.b_last))
        if last is not None
    ]
    difference = "" if task.difference is None else signed(task.difference)
    fell = " bad" if difference.startswith("−") else ""
    return (
        f'<li><span class="task">{html.escape(task.task)}</span>'
        f'<svg class="skill" width="100%" height="18" aria-hidden="true">{"".join(shown)}</svg>'
        f"<b>{_score(task.a_last)}<br>{_score(task.b_last)}</b>"
        f'<span class="delta{fell}">{difference}</span></li>'
    )


def _rewards(comparison: Comparison) -> str:
    rows = [
        (
            task.task,
            *(_score(value) for value in (task.a_first, task.a_last, task.b_first, task.b_last)),
            "–" if task.difference is None else signed(task.difference),
        )
        for task in comparison.tasks
    ]
    a, b = comparison.names
    header = ("task", f"{a}: first tenth", "last tenth", f"{b}: first tenth", "last tenth", "difference")
    return table(header, rows, "No round is recorded.")


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _curves(comparison: Comparison, task: str | None) -> dict[str, object]:
    """One line a run, by round; of the mean over all tasks where ``task`` is None."""
    found = zip(comparison.names, (comparison.a, comparison.b), strict=True)
    lines = [line for name, facts in found if (line := _line(name, facts, task)) is not None]
    return {"lines": lines, "max": 1, "by": "step", "format": "score"}


def _line(name: str, facts: RunFacts, task: str | None) -> dict[str, object] | None:
    wanted = "reward" if task is None else "success"
    series, steps = facts.series(wanted, task), facts.series("round")
    if series is None or steps is None:
        return None
    kept = [(step, value) for step, value in zip(steps.values, series.values, strict=True) if step is not None]
    return {"name": name, "x": [step for step, _ in kept], "values": [value for _, value in kept]}
