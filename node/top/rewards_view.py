"""What the node can do, what it could before, and what peers taught it, as lines of text. Pure functions.

The figures, and what counts as chance, are those of the page and of ``starling report`` (``node.api.gains``).
"""

from __future__ import annotations

from node.api.gains_words import SMALL, changed
from node.api.types import GainsAnswer, PeerGain, TaskGain, end_of
from node.quantities import counted
from node.top.text import Column, Line, Span, Style, number, share_bar, table, wrapped

MAX_LINES = 5  # of one sentence
BAR_CELLS = 10
MAX_TASKS_NAMED = 3  # of one peer
_TASKS = (
    Column("task", 22, grows=1),
    Column("before", 6, right=True),
    Column("now", 5, right=True),
    Column("", BAR_CELLS),
    Column("change", 13, right=True),
    Column("from peers", 10, right=True),
)
_PEERS = (
    Column("peer", 14, grows=1),
    Column("model", 14, grows=1),
    Column("taught", 7, right=True),
    Column("groups", 7, right=True),
    Column("most on", 27, grows=3),
)


def rewards_lines(gains: GainsAnswer, cells: int) -> list[Line]:
    """Returns the sentence of the page, the tasks with the greatest gain from others first, then the peers."""
    lines: list[Line] = [(Span(part),) for part in wrapped(gains.sentence, cells, MAX_LINES)]
    if not gains.tasks:
        return lines
    alone = gains.others_since_round is None
    lines += [(), *table(_TASKS, [_task(task, alone=alone) for task in gains.tasks], cells)]
    lines += [(), (Span("Peers, by what they taught (of the mean reward over the tasks)", "title"),)]
    if not gains.peers:
        return [*lines, (Span("No group of a peer was learnt from yet.", "faint"),)]
    lines += table(_PEERS, [_peer(peer) for peer in gains.peers], cells)
    if gains.peers_left_out:
        lines.append((Span(f"and {counted(gains.peers_left_out, 'more peer')}", "faint"),))
    return [*lines, (), *((Span(part, "faint"),) for part in wrapped(gains.limits, cells, MAX_LINES))]


def _task(task: TaskGain, *, alone: bool) -> tuple[Span, ...]:
    style: Style = "faint" if task.change is None else "good" if task.change > 0 else "bad"
    return (
        Span(task.task),
        Span(number(task.first if alone else task.before, 2)),
        Span(number(task.now, 2)),
        Span(share_bar(task.now, BAR_CELLS), "good"),
        Span(changed(task.change), style),
        Span("–" if alone else f"{task.from_others:+.2f}"),
    )


def _peer(peer: PeerGain) -> tuple[Span, ...]:
    most = sorted(peer.by_task.items(), key=lambda item: -abs(item[1]))[:MAX_TASKS_NAMED]
    return (
        Span(peer.name or end_of(peer.peer)),
        Span(peer.model or "–"),
        Span(f"{peer.gain:+.3f}"),
        Span(number(peer.groups)),
        Span(", ".join(f"{task} {gain:+.2f}" for task, gain in most if abs(gain) >= SMALL) or "–"),
    )
