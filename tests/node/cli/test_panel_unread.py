"""The panel on a terminal that takes nothing for a while."""

from __future__ import annotations

import io

from rich.console import Console
from rich.live import Live

from node.api.types import ChildStatus, NodeState, NodeStatus, PeersAnswer
from node.cli.progress import SCROLLED_LINES, PanelObserver

STATUS = NodeStatus(
    version="0", pid=1, home="/h", name="ann", peer="12D3KooWx", model="m", state=NodeState.TRAINING,
    uptime_seconds=5.0, swarm_process=ChildStatus(2, 0, None), learner_process=ChildStatus(3, 0, None), swarm=None,
    loading=None, ready=None, round=None, checkpoint=None, fault=None, notes=(), waiting_for="round 7 under way",
)  # fmt: skip


def test_no_frame_is_drawn_meanwhile_and_messages_wait_for_it() -> None:
    out = io.StringIO()
    reads = True
    live = Live(console=Console(file=out, force_terminal=True, width=80), auto_refresh=False)
    with live:
        observer = PanelObserver(live, lambda: reads)
        observer.on_tick(STATUS, PeersAnswer(()))
        assert "round 7 under way" in out.getvalue()
        reads = False
        drawn = len(out.getvalue())
        for number in range(SCROLLED_LINES + 5):
            observer.on_note(f"note {number}.")
            observer.on_tick(STATUS, PeersAnswer(()))
        assert len(out.getvalue()) == drawn
        reads = True
        observer.on_tick(STATUS, PeersAnswer(()))
    shown = out.getvalue()[drawn:]
    assert "5 lines were dropped" in shown and "note 5." in shown and f"note {SCROLLED_LINES + 4}." in shown
    assert "note 4." not in shown
