"""Two runs side by side: pure functions of their facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from node.api.gains_words import fell, lost_task
from node.printable import printable
from node.quantities import counted, duration, size, times
from node.report.facts import RunFacts

EQUAL_BELOW = 0.02  # a difference of mean reward that a sentence does not call better or worse
MAX_LOST_SHOWN = 4
UNKNOWN = "–"


class ComparedRow(Struct, frozen=True):
    """One fact of both runs, in words."""

    what: str
    a: str
    b: str


class ComparedTask(Struct, frozen=True):
    """One task of either run: the mean reward over the first and over the last tenth; None where it was not trained."""

    task: str
    a_first: float | None
    a_last: float | None
    b_first: float | None
    b_last: float | None
    difference: float | None  # b_last - a_last


class Comparison(Struct, frozen=True):
    """Two runs, and what differs."""

    names: tuple[str, str]
    a: RunFacts
    b: RunFacts
    rows: tuple[ComparedRow, ...]
    tasks: tuple[ComparedTask, ...]  # the greatest difference first
    sentence: str


def compare(a: RunFacts, b: RunFacts, names: tuple[str, str]) -> Comparison:
    """Returns both runs side by side. ``names`` are shown escaped."""
    shown = (printable(names[0], 64), printable(names[1], 64))
    tasks = compared_tasks(a, b)
    rows = tuple(ComparedRow(what, of(a), of(b)) for what, of in _ROWS.items())
    return Comparison(shown, a, b, rows, tasks, _sentence(tasks, shown))


def compared_tasks(a: RunFacts, b: RunFacts) -> tuple[ComparedTask, ...]:
    found = []
    for task in sorted(a.last_reward.keys() | b.last_reward.keys()):
        ours, theirs = a.last_reward.get(task), b.last_reward.get(task)
        difference = theirs - ours if ours is not None and theirs is not None else None
        found.append(
            ComparedTask(
                printable(task, 64), a.first_reward.get(task), ours, b.first_reward.get(task), theirs, difference
            )
        )
    return tuple(sorted(found, key=lambda each: (each.difference is None, -abs(each.difference or 0.0), each.task)))


def comparison_lines(comparison: Comparison) -> list[str]:
    """Returns what ``starling report A B`` prints."""
    table = [("", *comparison.names), *((row.what, row.a, row.b) for row in comparison.rows)]
    table += [
        (each.task, _from_to(each.a_first, each.a_last), _from_to(each.b_first, each.b_last))
        for each in comparison.tasks
    ]
    widths = [max(len(row[column]) for row in table) for column in range(2)]
    lines = [f"{what:<{widths[0]}}  {a:<{widths[1]}}  {b}".rstrip() for what, a, b in table]
    return [*lines, comparison.sentence]


def _from_others(facts: RunFacts) -> str:
    gains = facts.gains
    if gains.others_since_round is None:
        return "nothing"
    return f"{gains.from_others:+.3f} of mean reward, {gains.from_itself:+.3f} from itself"


def _lost(facts: RunFacts) -> str:
    losses = facts.gains.losses[:MAX_LOST_SHOWN]
    return ", ".join(fell(lost_task(loss), loss.best, loss.now) for loss in losses) or "nothing"


_ROWS: Final[Mapping[str, Callable[[RunFacts], str]]] = {
    "model": lambda facts: printable(facts.model or "unknown", 64),
    "device": lambda facts: printable(facts.device or "unknown", 64),
    "run": lambda facts: (
        f"{counted(facts.rounds, 'round')} in {duration(facts.lasted_seconds)}, {counted(facts.starts, 'start')}"
    ),
    "tokens": lambda facts: f"{facts.tokens_generated:,}",
    "groups": lambda facts: (
        f"{facts.sharing.generated:,} own, {facts.sharing.used:,} of peers, {facts.sharing.offered:,} offered"
    ),
    "from others": _from_others,
    "lost": _lost,
    "traffic": lambda facts: f"{size(facts.traffic.sent_bytes)} sent, {size(facts.traffic.received_bytes)} received",
    "averaged": lambda facts: times(facts.averaged_total),
    "faults": lambda facts: f"{facts.faults_total:,}",
}


def _from_to(first: float | None, last: float | None) -> str:
    return UNKNOWN if first is None or last is None else f"{first:.3f} → {last:.3f}"


def _sentence(tasks: tuple[ComparedTask, ...], names: tuple[str, str]) -> str:
    common = [each for each in tasks if each.difference is not None]
    if not common:
        return "The two runs have no task in common."
    mean = sum(each.difference or 0.0 for each in common) / len(common)
    on = f"over the {counted(len(common), 'task')} that both trained"
    if abs(mean) < EQUAL_BELOW:
        said = f"Both end alike {on}: their mean rewards differ by {abs(mean):.3f}"
    else:
        better = names[1] if mean > 0 else names[0]
        said = f"{better} ends higher by {abs(mean):.3f} of mean reward {on}"
    # The task on which the difference is the other way round is named: a mean must not hide it.
    against = min(common, key=lambda each: (each.difference or 0.0) * (1 if mean > 0 else -1))
    apart = against.difference or 0.0
    if abs(apart) >= EQUAL_BELOW and (apart < 0) == (mean > 0):
        other = names[0] if apart < 0 else names[1]
        return f"{said}; on {against.task} {other} is higher by {abs(apart):.3f}."
    return f"{said}."
