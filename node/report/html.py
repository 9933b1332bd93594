"""A run as one HTML file that loads nothing else: tables, and curves drawn by the web page's code.

All text of the run is escaped: as text in the tables, and in the data so that it cannot end the script that holds it.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from node.api.page_files import asset_text
from node.api.types import Timeline
from node.cli.wording import evaluated_line
from node.printable import printable
from node.quantities import counted, duration, size, times
from node.report.comparison import Comparison
from node.report.facts import RunFacts

HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title><link rel="icon" href="data:,">
<style>{style}</style></head><body><header><h1>{title}</h1><p>{subtitle}</p></header><main>
"""


def report_page(facts: RunFacts, *, name: str) -> str:
    """Returns the whole file."""
    title = f"starling: {printable(name, 64)}"
    body = [
        HEAD.format(title=html.escape(title), subtitle=html.escape(_subtitle(facts)), style=asset_text("page.css")),
        _tiles(facts),
        _section("Reward", _rewards(facts) + _chart("reward", "Reward by task")),
        _section("Held-out prompts", _evaluated(facts) + _chart("held-out", "Reward on held-out prompts, by task")),
        _section("Throughput", _chart("tokens", "Tokens a second")),
        _section("Sharing", _sharing(facts)),
        _section(
            "Traffic and memory",
            _traffic(facts) + _chart("traffic", "Bytes a second") + _chart("memory", "Resident memory, bytes"),
        ),
        _section("Averaging", _averagings(facts)),
        _section("Faults", _faults(facts)),
        _section("Memory that ran out", _out_of_memory(facts)) if facts.out_of_memory_total else "",
        "</main>",
        f'<script type="application/json" id="curves">{_in_script(_curves(facts))}</script>',
        f'<script type="module">{asset_text("charts.js")}{asset_text("report.js")}</script></body></html>\n',
    ]
    return "\n".join(body)


def write_report(facts: RunFacts, path: Path, *, name: str) -> None:
    path.write_text(report_page(facts, name=name), encoding="utf-8")


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Writes two runs side by side, as tables."""
    first, second = comparison.names
    title = f"starling: {first} and {second}"
    rows = [(row.what, row.a, row.b) for row in comparison.rows]
    tasks = [
        (each.task, _reward(each.a_first, each.a_last), _reward(each.b_first, each.b_last), _change(each.difference))
        for each in comparison.tasks
    ]
    header = ("task", first, second, "difference at the end")
    body = [
        HEAD.format(title=html.escape(title), subtitle=html.escape(comparison.sentence), style=asset_text("page.css")),
        _section("Runs", _table(("", first, second), rows, "")),
        _section("Reward, first and last tenth", _table(header, tasks, "No round is recorded.")),
        "</main></body></html>\n",
    ]
    path.write_text("\n".join(body), encoding="utf-8")


def _reward(first: float | None, last: float | None) -> str:
    return "–" if first is None or last is None else f"{first:.3f} → {last:.3f}"


def _change(difference: float | None) -> str:
    return "–" if difference is None else f"{difference:+.3f}"


def _subtitle(facts: RunFacts) -> str:
    ended = facts.ended_because or "still running, or not stopped in order"
    model = printable(facts.model or "unknown model")
    span = f"{_when(facts.began_seconds)} to {_when(facts.ended_seconds)}"
    return f"{model}, {facts.device or 'unknown device'}; {span}; {ended}"


def _when(seconds: float | None) -> str:
    return "?" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _tiles(facts: RunFacts) -> str:
    lasted = (facts.ended_seconds or 0.0) - (facts.began_seconds or 0.0)
    tiles = [
        ("Rounds", f"{facts.rounds:,}", counted(facts.starts, "start")),
        ("Duration", duration(lasted), "between the first and the last record"),
        ("Generated", f"{facts.tokens_generated:,}", "tokens"),
        ("Foreign groups used", f"{facts.sharing.used:,}", f"{facts.sharing.replayed:,} used again"),
        ("Averaged", f"{facts.averaged_total:,}", "time" if facts.averaged_total == 1 else "times"),
        ("Faults", f"{facts.faults_total:,}", "listed below" if facts.faults_total else "none"),
    ]
    drawn = (
        f'<dl class="tile"><dt>{html.escape(title)}</dt><dd>{html.escape(value)}</dd>'
        f'<div class="aside">{html.escape(aside)}</div></dl>'
        for title, value, aside in tiles
    )
    return f'<section id="now">{"".join(drawn)}</section>'


def _rewards(facts: RunFacts) -> str:
    rows = [
        (task, f"{facts.first_reward[task]:.3f}", f"{last:.3f}", f"{last - facts.first_reward[task]:+.3f}")
        for task, last in sorted(facts.last_reward.items())
    ]
    return _table(("task", "first tenth", "last tenth", "change"), rows, "No round is recorded.")


def _evaluated(facts: RunFacts) -> str:
    last = facts.evaluated
    rows = [] if last is None else [(task, f"{reward:.3f}") for task, reward in sorted(last.reward_by_task.items())]
    said = "" if last is None else f"<p>{html.escape(evaluated_line(last))}</p>"
    return said + _table(("task", "last evaluation"), rows, "The policy was not evaluated.")


def _sharing(facts: RunFacts) -> str:
    shared = facts.sharing
    per_completion = shared.bytes_per_foreign_completion
    rows = [
        ("own groups generated", f"{shared.generated:,}"),
        ("informative ones among them", f"{shared.informative:,}"),
        ("shared with peers", f"{shared.shared:,}"),
        ("fetched from peers", f"{shared.fetched:,}"),
        ("used for the first time", f"{shared.used:,}"),
        ("used again", f"{shared.replayed:,}"),
        ("bytes fetched", size(shared.fetched_bytes)),
        ("bytes for each foreign completion used", "–" if per_completion is None else size(per_completion)),
    ]
    why = [(reason.because, f"{reason.count:,}") for reason in shared.not_used]
    return _table(("", "total"), rows, "") + _table(
        ("why groups of peers were not used", "times"), why, "All groups received from peers were used."
    )


def _traffic(facts: RunFacts) -> str:
    rows = [("sent", size(facts.traffic.sent_bytes)), ("received", size(facts.traffic.received_bytes))]
    return _table(("", "total"), rows, "")


def _averagings(facts: RunFacts) -> str:
    rows = [
        (
            str(exchange.round),
            exchange.partner or "",
            "–" if exchange.distance is None else f"{exchange.distance:.2%}",
            size(exchange.sent_bytes),
            size(exchange.received_bytes),
            f"{exchange.seconds:.1f} s",
        )
        for exchange in reversed(facts.averaged)
    ]
    header = ("round", "partner", "distance", "sent", "received", "duration")
    return _table(header, rows, "Weights were never averaged with a peer.")


def _faults(facts: RunFacts) -> str:
    rows = [(str(fault.round), fault.kind, fault.detail) for fault in reversed(facts.faults)]
    return _table(("round", "kind", "detail"), rows, "No fault is recorded.")


def _out_of_memory(facts: RunFacts) -> str:
    rows = [
        (
            str(event.round),
            event.phase,
            event.then,
            "" if event.key is None else f"{event.key}: {event.before} to {event.after}",
            event.detail,
        )
        for event in reversed(facts.out_of_memory)
    ]
    total = f"<p>Memory ran out {times(facts.out_of_memory_total)}; no round was lost by it.</p>"
    return total + _table(("round", "phase", "what followed", "halved", "error"), rows, "")


def _section(title: str, inside: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{inside}</section>"


def _chart(name: str, title: str) -> str:
    return f'<figure><figcaption>{title}</figcaption><div class="chart" id="chart-{name}"></div></figure>'


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], none: str) -> str:
    cells = ["".join(f"<td>{html.escape(printable(cell, 400))}</td>" for cell in row) for row in rows]
    if not cells:
        return f'<p class="empty">{html.escape(none)}</p>'
    titles = "".join(f'<th scope="col">{html.escape(title)}</th>' for title in header)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f'<div class="card"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'


def _curves(facts: RunFacts) -> bytes:
    rounds, usage, evaluations = facts.history.rounds, facts.history.usage, facts.history.evaluations
    return msgspec.json.encode(
        {
            "reward": _lines(rounds, names={"reward"}, by_task=True),
            "held-out": _lines(evaluations, names={"reward"}, by_task=True),
            "tokens": _lines(rounds, names={"generated_tokens_per_second", "trained_tokens_per_second"}),
            "traffic": _lines(usage, names={"sent_bytes_per_second", "received_bytes_per_second"}),
            "memory": _lines(usage, names={s.name for s in usage.series if s.name.endswith("_memory_bytes")}),
        }
    )


def _lines(timeline: Timeline, *, names: set[str], by_task: bool = False) -> list[dict[str, object]]:
    return [
        {
            "name": printable(series.task or series.name.replace("_", " "), 64),
            "seconds": timeline.time_seconds,
            "values": series.values,
        }
        for series in timeline.series
        if series.name in names and (series.task is not None) == by_task
    ]


def _in_script(json: bytes) -> str:
    """Returns JSON that cannot end the HTML element that holds it."""
    return json.decode().replace("<", "\\u003c")
