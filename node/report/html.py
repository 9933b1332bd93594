"""A run as one HTML file that loads nothing else: the web page's sentence, picture and chart, and every figure."""

from __future__ import annotations

import html
from datetime import UTC, datetime

import msgspec

from node.api.answers import rate_line
from node.api.gains_words import changed, in_steps
from node.api.reasons import nothing_unused
from node.cli.wording import evaluated_line
from node.printable import printable
from node.quantities import counted, duration, size, times
from node.report.facts import RunFacts
from node.report.parts import chart, details, grouped, lines, listed, page, section_of_page, table


def report_page(facts: RunFacts, *, name: str) -> str:
    """Returns the whole file."""
    shown = printable(name, 64)
    ran_out = [details("Memory that ran out", _out_of_memory(facts))] if facts.out_of_memory_total else []
    title = f"Learnt less from peers for a while: {times(facts.withdrawals_total)}"
    less = [details(title, _withdrawals(facts))] if facts.withdrawals_total else []
    parts = [
        section_of_page("hero"),
        section_of_page("over-time"),
        '<section class="details" aria-label="Details">',
        details("The run in figures", f'<div id="now">{_figures(facts)}</div>', is_open=True),
        details("Reward by task", _rewards(facts)),
        details("Held-out prompts", _evaluated(facts)),
        details("Sharing", _sharing(facts)),
        details("Throughput, traffic and memory", _machine(facts)),
        details("Averaging", _averagings(facts)),
        *less,
        details(f"Faults: {grouped(facts.faults_total)}", _faults(facts)),
        *ran_out,
        "</section>",
    ]
    return page(f"starling: {shown}", _subtitle(facts), parts, _drawn(facts, shown))


def _drawn(facts: RunFacts, name: str) -> dict[str, object]:
    """What the scripts draw; text of the run is escaped by ``printable`` before it gets here, or is a task's name."""
    rounds, usage = facts.history.rounds, facts.history.usage
    tokens = {"generated_tokens_per_second", "trained_tokens_per_second"}
    traffic = {"sent_bytes_per_second", "received_bytes_per_second"}
    memory = {series.name for series in usage.series if series.name.endswith("memory_bytes")}
    return {
        "name": name,
        "ended": True,
        "gains": msgspec.to_builtins(facts.gains),
        "history": msgspec.to_builtins(_printable_tasks(facts)),
        "charts": {
            "chart-tokens": {"lines": lines(rounds, tokens), "format": "short"},
            "chart-traffic": {"lines": lines(usage, traffic), "format": "size"},
            "chart-memory": {"lines": lines(usage, memory), "format": "size"},
        },
    }


def _printable_tasks(facts: RunFacts) -> object:
    """Returns the history with the names of tasks escaped."""
    history = facts.history
    shown = {
        field: msgspec.structs.replace(
            timeline,
            series=tuple(
                series if series.task is None else msgspec.structs.replace(series, task=printable(series.task, 64))
                for series in timeline.series
            ),
        )
        for field, timeline in (("rounds", history.rounds), ("evaluations", history.evaluations))
    }
    return msgspec.structs.replace(history, **shown)


def _subtitle(facts: RunFacts) -> str:
    ended = f"ended: {facts.ended_because}" if facts.ended_because else "still running, or not stopped in order"
    model = printable(facts.model or "unknown model")
    span = f"{_when(facts.began_seconds)} to {_when(facts.ended_seconds)}"
    return f"{model}, {facts.device or 'unknown device'}; {span}; {ended}"


def _when(seconds: float | None) -> str:
    return "?" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _figures(facts: RunFacts) -> str:
    return listed(
        (
            ("rounds", grouped(facts.rounds), counted(facts.starts, "start")),
            ("duration", duration(facts.lasted_seconds), "between the first and the last record"),
            ("generated", f"{grouped(facts.tokens_generated)} tokens", ""),
            ("groups of peers used", grouped(facts.sharing.used), f"{grouped(facts.sharing.replayed)} used again"),
            *(
                [("learning rate", f"{facts.found_rate.to:.2g}", rate_line(facts.found_rate))]
                if facts.found_rate is not None
                else []
            ),
            ("weights averaged", grouped(facts.averaged_total), "time" if facts.averaged_total == 1 else "times"),
            ("faults", grouped(facts.faults_total), "listed below" if facts.faults_total else "none"),
        )
    )


def _rewards(facts: RunFacts) -> str:
    alone = facts.gains.others_since_round is None
    rows = [
        (task.task, *in_steps(task, alone=alone), changed(task.change))
        for task in sorted(facts.gains.tasks, key=lambda task: task.task)
    ]
    head = ("task", "at first", *(() if alone else ("before others",)), "at the end", "change")
    return table(head, rows, "No round is recorded.")


def _evaluated(facts: RunFacts) -> str:
    last = facts.evaluated
    rows = [] if last is None else [(task, f"{reward:.2f}") for task, reward in sorted(last.reward_by_task.items())]
    said = "" if last is None else f"<p>{html.escape(evaluated_line(last))}</p>"
    return said + table(("task", "last evaluation"), rows, "The policy was not evaluated.")


def _sharing(facts: RunFacts) -> str:
    shared = facts.sharing
    per_completion = shared.bytes_per_foreign_completion
    rows = [
        ("own groups generated", grouped(shared.generated)),
        ("informative ones among them", grouped(shared.informative)),
        ("offered to peers", grouped(shared.offered)),
        ("fetched from peers", grouped(shared.fetched)),
        ("used for the first time", grouped(shared.used)),
        ("used again", grouped(shared.replayed)),
        ("bytes fetched", size(shared.fetched_bytes)),
        ("bytes for each foreign completion used", "–" if per_completion is None else size(per_completion)),
    ]
    why = [(reason.because, grouped(reason.count)) for reason in shared.not_used]
    return table(("groups", "total"), rows, "") + table(
        ("why groups of peers were not used", "times"), why, nothing_unused(shared.fetched)
    )


def _machine(facts: RunFacts) -> str:
    rows = [("sent", size(facts.traffic.sent_bytes)), ("received", size(facts.traffic.received_bytes))]
    titles = (("tokens", "Tokens a second"), ("traffic", "Traffic a second"), ("memory", "Resident memory"))
    charts = "".join(chart(name, title) for name, title in titles)
    return f'{table(("traffic", "total"), rows, "")}<div class="charts">{charts}</div>'


def _averagings(facts: RunFacts) -> str:
    rows = [
        (
            str(exchange.round),
            exchange.partner or "",
            "–" if exchange.distance is None else f"{100 * exchange.distance:.2f} %",
            size(exchange.sent_bytes),
            size(exchange.received_bytes),
            f"{exchange.seconds:.1f} s",
        )
        for exchange in reversed(facts.averaged)
    ]
    header = ("round", "partner", "distance", "sent", "received", "duration")
    return table(header, rows, "Weights were never averaged with a peer.")


def _faults(facts: RunFacts) -> str:
    rows = [(str(fault.round), fault.kind, fault.detail) for fault in reversed(facts.faults)]
    return table(("round", "kind", "detail"), rows, "No fault is recorded.")


def _withdrawals(facts: RunFacts) -> str:
    rows = [(", ".join(each.names), each.sentence) for each in reversed(facts.withdrawals)]
    return table(("peers", "what was done, and why"), rows, "")


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
    return total + table(("round", "phase", "what followed", "halved", "error"), rows, "")
