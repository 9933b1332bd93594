"""Shows a node while it runs: a live panel on a terminal, plain lines elsewhere, or every event as a line of JSON.

A terminal or pipe that closes must not stop the node: from then on nothing is shown. One that nobody reads must not
stop it either: everything goes through ``output_queue``, which drops what does not fit and says so.
"""

from __future__ import annotations

import io
import json
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol, cast

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from node.api.answers import damaged_line, engine_line, loading_line, not_saved_line
from node.api.types import NodeStatus, PeersAnswer
from node.cli import wording
from node.cli.output_queue import QueuedText, dropped_line, queued
from node.cli.page_link import page_link
from node.events import (
    Averaged,
    BaselineMeasured,
    CheckpointSaved,
    Evaluated,
    Event,
    Fault,
    LearnerReady,
    Loading,
    Planned,
    RoundDone,
    StateSyncing,
    Stopped,
)
from node.quantities import counted, duration, size
from node.supervision.outcome import RunOutcome
from node.supervision.reporting import Observer

ROUND_LINE_SECONDS = 5.0  # between two lines about rounds
ALONE_LINE_SECONDS = 300.0  # between two reminders that the node trains alone
LINE_SECONDS: Mapping[type[Event], float] = {CheckpointSaved: 60.0, Evaluated: 60.0, Averaged: 300.0}  # between two
MAX_LOSSES_SHOWN = 3  # in the panel
MAX_PEERS_SHOWN = 7
ECHO_COLUMNS = 2  # left free beside the panel: a terminal's "^C" there would push it up a line, and a piece would stay
SCROLLED_LINES = 200  # that wait for a terminal which nobody reads


class UpObserver(Observer, Protocol):
    def on_outcome(self, outcome: RunOutcome) -> None:
        """Called once, after the node has stopped."""


@contextmanager
def observer_for(token: Path, *, as_json: bool) -> Iterator[UpObserver]:
    """Gives the observer that suits standard output. None of its methods waits for a reader. A terminal is shown a link
    with the API's token, which is in the file ``token``."""
    with queued(sys.stdout, dropped_event if as_json else dropped_line) as queue:
        out = QueuedText(queue, sys.stdout)
        if as_json:
            yield JsonObserver(out)
        elif sys.stdout.isatty():
            with Live(console=Console(file=cast(IO[str], out)), auto_refresh=False, transient=True) as live:
                yield PanelObserver(live, lambda: queue.idle, token)
        else:
            yield PlainObserver(out)


def dropped_event(lines: int) -> str:
    """Returns the event that stands for lines that nobody read."""
    return json.dumps({"event": "dropped", "lines": lines, "time_seconds": time.time()})


class JsonObserver:
    """Writes one JSON object a line: the learner's events unchanged, the supervisor's as ``note``, ``node``,
    ``ended``; ``dropped`` where the reader missed some."""

    def __init__(self, out: io.TextIOBase) -> None:
        self._out: io.TextIOBase | None = out
        self._addresses: tuple[str, ...] = ()

    def on_event(self, line: bytes, event: Event) -> None:
        self._write(line.decode())

    def on_note(self, text: str) -> None:
        self._write_event({"event": "note", "text": text})

    def on_tick(self, status: NodeStatus, peers: PeersAnswer) -> None:
        if status.swarm is not None and status.swarm.addresses and status.swarm.addresses != self._addresses:
            self._addresses = status.swarm.addresses
            about = {"peer": status.peer, "name": status.name, "page": status.page}
            self._write_event({"event": "node", **about, "addresses": self._addresses})

    def on_outcome(self, outcome: RunOutcome) -> None:
        self._write_event({"event": "ended", "exit_code": int(outcome.exit_code), "because": outcome.because})

    def _write_event(self, event: dict[str, object]) -> None:
        self._write(json.dumps({**event, "time_seconds": time.time()}))

    def _write(self, line: str) -> None:
        self._out = _written(self._out, line)


LINES: Mapping[type[Event], Callable[[Any], str]] = {
    Planned: wording.plan_line,
    LearnerReady: wording.ready_line,
    StateSyncing: wording.state_sync_line,
    Fault: wording.fault_line,
    CheckpointSaved: wording.checkpoint_line,
    Evaluated: wording.evaluated_line,
    BaselineMeasured: wording.baseline_line,
    Loading: loading_line,
    Averaged: wording.averaged_line,
}
PANEL_LINES = (Planned, LearnerReady, StateSyncing, Fault)  # not to be missed


def line_of(event: Event) -> str | None:
    """Returns the line for an event, if it has one. Of a checkpoint that could not be written the supervisor's note
    tells more."""
    if isinstance(event, Fault) and event.kind == "checkpoint" and not event.fatal:
        return None
    return LINES[type(event)](event) if type(event) in LINES else None


class PlainObserver:
    """Writes a line for each event, and for rounds one line every ``round_line_seconds``. ``stamp`` is the format of
    the local time before each line."""

    def __init__(
        self, out: io.TextIOBase, *, stamp: str = "%H:%M:%S", round_line_seconds: float = ROUND_LINE_SECONDS
    ) -> None:
        self._out: io.TextIOBase | None = out
        self._stamp, self._round_line_seconds = stamp, round_line_seconds
        self._shown_at: dict[object, float] = {}  # by what was shown
        self._unshown: RoundDone | None = None  # the newest round since the one that was shown
        self._page: str | None = None
        self._peers = 0
        self._fatal: Fault | None = None  # was shown, so that the outcome need not repeat it

    def on_event(self, line: bytes, event: Event) -> None:
        match event:
            case RoundDone():
                self._unshown = event
                if self._is_due(RoundDone, self._round_line_seconds):
                    self._show_round(event)
            case Stopped() if self._unshown is not None:
                self._show_round(self._unshown)
            case Fault(fatal=True):
                self._fatal = event
        had_partner = isinstance(event, Averaged) and event.partner is not None
        every_seconds = 0.0 if had_partner else LINE_SECONDS.get(type(event), 0.0)
        text = line_of(event)
        if text is not None and (not every_seconds or self._is_due(type(event), every_seconds)):
            self._write(text)

    def on_note(self, text: str) -> None:
        self._write(text)

    def on_tick(self, status: NodeStatus, peers: PeersAnswer) -> None:
        if status.page is not None and status.page != self._page:
            self._page = status.page
            self._write(f"Web page: {status.page}")
        swarm = status.swarm
        if swarm is None:
            return
        if swarm.alone_because is None:
            self._shown_at.pop("alone", None)
        elif self._is_due("alone", ALONE_LINE_SECONDS):
            self._write(wording.alone_lines(swarm))
        if swarm.connected_peers != self._peers:
            self._peers = swarm.connected_peers
            self._write(f"{counted(self._peers, 'peer')} connected")

    def on_outcome(self, outcome: RunOutcome) -> None:
        self._write(wording.outcome_line(outcome, self._fatal))

    def _show_round(self, done: RoundDone) -> None:
        self._shown_at[RoundDone], self._unshown = time.monotonic(), None
        self._write(f"{wording.round_line(done)}  peers {self._peers}")

    def _is_due(self, what: object, every_seconds: float) -> bool:
        """Whether it was not shown for so long; then it counts as shown now."""
        now = time.monotonic()
        is_due = now - self._shown_at.get(what, -math.inf) >= every_seconds
        if is_due:
            self._shown_at[what] = now
        return is_due

    def _write(self, text: str) -> None:
        stamp = time.strftime(self._stamp)
        for line in text.splitlines():
            self._out = _written(self._out, f"{stamp}  {line}")


class PanelObserver:
    """Redraws one panel; messages that must not be missed scroll past above it.

    While ``reads`` says that the terminal takes nothing (Ctrl-S, copy mode), nothing is drawn, so that no frame is lost
    from the middle of others; the newest messages wait.
    """

    def __init__(self, live: Live, reads: Callable[[], bool], token: Path) -> None:
        self._live, self._reads, self._token = live, reads, token
        self._page: str | None = None
        self._unscrolled: deque[str] = deque(maxlen=SCROLLED_LINES)
        self._lost_lines = 0
        self._join_line = ""  # that scrolled past last
        self._fatal: Fault | None = None  # was shown, so that the outcome need not repeat it

    def on_event(self, line: bytes, event: Event) -> None:
        if isinstance(event, Fault) and event.fatal:
            self._fatal = event
        text = line_of(event) if isinstance(event, PANEL_LINES) else None
        if text is not None:
            self._scroll(text)

    def on_note(self, text: str) -> None:
        self._scroll(text)

    def on_tick(self, status: NodeStatus, peers: PeersAnswer) -> None:
        if status.page is not None and status.page != self._page:
            self._page = status.page
            self._scroll(f"Web page: {page_link(status.page, self._token)}")
        if status.join is not None and status.join.commands and self._join_line != status.join.commands[0]:
            self._join_line = status.join.commands[0]
            self._scroll(wording.join_line(status.join))
        self._live.update(panel(status, peers, self._live.console.width - ECHO_COLUMNS), refresh=False)
        self._draw()

    def on_outcome(self, outcome: RunOutcome) -> None:
        self._scroll(wording.outcome_line(outcome, self._fatal))

    def _scroll(self, text: str) -> None:
        self._lost_lines += len(self._unscrolled) == SCROLLED_LINES
        self._unscrolled.append(text)
        self._draw()

    def _draw(self) -> None:
        if not self._reads():
            return
        if self._unscrolled:
            missed = [dropped_line(self._lost_lines)] if self._lost_lines else []
            self._live.console.print(Text("\n".join([*missed, *self._unscrolled])), soft_wrap=True)  # lines to copy
            self._unscrolled.clear()
            self._lost_lines = 0
        self._live.refresh()


def panel(status: NodeStatus, peers: PeersAnswer, width: int | None = None) -> Panel:
    """Returns one frame, as wide as the terminal by default: what the node does now. Strings from peers are text,
    neither markup nor control sequences."""
    facts = Table.grid(padding=(0, 2))
    facts.add_row("now", Text(status.waiting_for))
    for name, text in (
        ("not saved", not_saved_line(status.not_saved) if status.not_saved else None),
        ("damaged", damaged_line(status.damaged) if status.damaged else None),
        ("engine", engine_line(status.engine) if status.engine and not status.engine.is_as_configured else None),
        ("learning", status.nothing_learnt or status.reward_falls),
        ("hangs", status.hangs),
        ("clock", status.clock),
    ):
        if text is not None:
            facts.add_row(Text(name, style="bold red"), Text(text, style="bold red"))
    if status.round is not None:
        done = status.round
        facts.add_row("round", Text(f"{done.round}, {done.seconds:.1f} s, {done.tokens_per_second:,.0f} tokens/s"))
        facts.add_row("reward", Text(f"{done.reward:.3f}"))
        total = f"{done.groups_offered_total} offered, {done.foreign_groups_used_total} foreign used"
        facts.add_row("groups", Text(f"{done.own_groups} own, {done.foreign_groups_used} foreign; in total {total}"))
        for task, success in sorted(done.success_by_task.items()):
            facts.add_row(Text(task), Text(f"{'█' * round(20 * success):<20} {success:.2f}"))
    for loss in status.losses[:MAX_LOSSES_SHOWN]:
        facts.add_row("lost", Text(loss.sentence))
    for each in status.withdrawn[-MAX_LOSSES_SHOWN:]:
        facts.add_row("caution", Text(each.sentence))
    if status.evaluated is not None:
        facts.add_row("held-out", Text(wording.evaluated_line(status.evaluated)))
    if status.averaged is not None:
        facts.add_row("weights", Text(wording.averaged_line(status.averaged)))
    swarm = status.swarm
    if swarm is None:
        facts.add_row("swarm", Text(wording.no_swarm(status)))
    else:
        sent, received = size(swarm.sent_bytes), size(swarm.received_bytes)
        facts.add_row("peers", Text(f"{swarm.connected_peers} connected, {sent} sent, {received} received"))
    connected = [peer for peer in peers.peers if peer.connected][:MAX_PEERS_SHOWN]
    lines = [Text(f"  {wording.panel_peer_line(peer)}", overflow="ellipsis", no_wrap=True) for peer in connected]
    below = Text(wording.alone_line(swarm) if swarm is not None else "")
    title = Text(f"starling {status.version}  {status.name}  up {duration(status.uptime_seconds)}")
    return Panel(Group(facts, *lines, *([below] if below.plain else [])), title=title, title_align="left", width=width)


def _written(out: io.TextIOBase | None, line: str) -> io.TextIOBase | None:
    """Writes ``line`` and returns ``out``; returns None once its reader has closed it."""
    try:
        if out is not None:
            out.write(line + "\n")
            out.flush()
    except (OSError, ValueError):
        return None
    return out
