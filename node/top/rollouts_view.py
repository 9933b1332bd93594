"""The outcomes of rollout groups as lines of text: counts, why some were not used, the newest ones. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from node.api.reasons import nothing_unused
from node.api.types import GroupSeen, RolloutsAnswer, RoundRollouts, WhyNot
from node.cli.wording import ends_of
from node.quantities import duration
from node.top.text import Column, Line, Span, Style, fitted, number, table, wrapped

COUNT_CELLS = 8
MAX_LINES = 3
MAX_GROUPS = 100  # the newest are listed
STYLES: dict[str, Style] = {"used": "good", "replayed": "good", "false_reward": "bad", "integrity": "bad"}
FLOW: tuple[tuple[str, Callable[[RoundRollouts], int]], ...] = (
    ("own groups generated", lambda done: done.generated),
    ("informative among them", lambda done: done.informative),
    ("offered to peers", lambda done: done.offered),
    ("fetched from peers", lambda done: done.fetched),
    ("used for the first time", lambda done: done.used),
    ("used again", lambda done: done.replayed),
)
_GROUPS = (
    Column("ago", 12, right=True),
    Column("from", 14, grows=1),
    Column("task", 12, grows=1),
    Column("reward", 11, right=True),
    Column("outcome", 21, grows=3),
)


def rollouts_lines(answer: RolloutsAnswer, now_seconds: float, cells: int) -> list[Line]:
    """Returns counts of groups, reasons, and the newest groups, newest first."""
    if not answer.rounds:
        return [(Span("No round is done yet."),)]
    lines = _flow(answer.rounds, cells)
    lines += [(), (Span("Why groups of peers were not used", "title"),)]
    lines += _reasons(answer.not_used, nothing_unused(sum(done.fetched for done in answer.rounds)), cells)
    lines += [(), (Span("Why announcements were rejected", "title"),)]
    lines += _reasons(answer.announcements_not_taken, "No announcement was rejected.", cells)
    lines += [(), (Span("Groups of peers, newest first", "title"),)]
    newest = answer.groups[: -MAX_GROUPS - 1 : -1]
    if not newest:
        return [*lines, (Span("None fetched yet.", "faint"),)]
    return [*lines, *table(_GROUPS, [_group(group, now_seconds) for group in newest], cells)]


def _flow(rounds: Sequence[RoundRollouts], cells: int) -> list[Line]:
    columns = (
        Column("groups", 24),
        Column("last round", 10, right=True),
        Column(f"last {len(rounds)} rounds", 15, right=True),
    )
    rows = [(Span(title), Span(number(of(rounds[-1]))), Span(number(sum(map(of, rounds))))) for title, of in FLOW]
    return table(columns, rows, cells)


def _reasons(given: Sequence[WhyNot], none: str, cells: int) -> list[Line]:
    lines: list[Line] = []
    for why in given:
        for row, part in enumerate(wrapped(why.because, cells - COUNT_CELLS - 2, MAX_LINES)):
            count = f"{why.count:,} ×" if row == 0 else ""
            lines.append((Span(fitted(count, COUNT_CELLS, right=True) + "  "), Span(part)))
    return lines or [(Span(none, "faint"),)]


def _group(group: GroupSeen, now_seconds: float) -> tuple[Span, ...]:
    outcome = group.outcome.replace("_", " ")
    return (
        Span(duration(max(0.0, now_seconds - group.time_seconds))),
        Span(group.name or ends_of(group.peer)),
        Span(group.task),
        Span(f"{group.reward_mean:.2f} ± {group.reward_spread:.2f}"),
        Span(f"{outcome}: {group.detail or group.because}", STYLES.get(group.outcome, "")),
    )
