"""The node's own log, HOME/logs/node.log: what ``starling up`` shows as plain lines, whether its output is read or not.

``starling logs`` shows it. It begins with the node: a start that is refused because another node runs here leaves no
line in that node's log.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Final

from node.api.types import NodeStatus, PeersAnswer
from node.cli.progress import PlainObserver, UpObserver
from node.events import Event
from node.home import Home
from node.supervision.outcome import RunOutcome
from node.supervision.rolling_log import RollingLog

NODE_LOG: Final = "node"
NODE_LOG_BYTES: Final = 4 << 20  # about two weeks
STAMP: Final = "%Y-%m-%d %H:%M:%S"  # local time
ROUND_LINE_SECONDS: Final = 60.0  # between two lines about rounds
EARLY_NOTES: Final = 20  # kept until the node has begun


def node_log(home: Home) -> RollingLog:
    return RollingLog(home.log(NODE_LOG), max_bytes=NODE_LOG_BYTES)


class LoggedObserver:
    """Shows a node by ``shown`` and writes the same, as plain lines, to ``log``."""

    def __init__(self, shown: UpObserver, log: RollingLog) -> None:
        self._shown = shown
        self._lines = PlainObserver(_LogText(log.append), stamp=STAMP, round_line_seconds=ROUND_LINE_SECONDS)
        self._early: list[str] | None = []  # notes from before the node began

    def on_event(self, line: bytes, event: Event) -> None:
        self._begin()
        self._lines.on_event(line, event)
        self._shown.on_event(line, event)

    def on_note(self, text: str) -> None:
        if self._early is None:
            self._lines.on_note(text)
        else:
            self._early = [*self._early, text][-EARLY_NOTES:]
        self._shown.on_note(text)

    def on_tick(self, status: NodeStatus, peers: PeersAnswer) -> None:
        self._begin()
        self._lines.on_tick(status, peers)
        self._shown.on_tick(status, peers)

    def on_outcome(self, outcome: RunOutcome) -> None:
        if self._early is None:
            self._lines.on_outcome(outcome)
        self._shown.on_outcome(outcome)

    def _begin(self) -> None:
        early, self._early = self._early, None
        for text in early or ():
            self._lines.on_note(text)


class _LogText(io.TextIOBase):
    def __init__(self, append: Callable[[bytes], None]) -> None:
        super().__init__()
        self._append = append

    def write(self, text: str) -> int:
        self._append(text.encode("utf-8", "replace"))
        return len(text)
