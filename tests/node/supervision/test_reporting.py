"""What is kept of what happens, and what is only shown."""

from __future__ import annotations

from pathlib import Path

import msgspec

from node.api.record import RunRecord, recorded_run
from node.api.types import NodeStatus, PeersAnswer
from node.events import Event, ForeignGroups, GroupOutcome, encode_event
from node.home import Home
from node.supervision.reporting import Reporting

PEER = "12D3KooWF8za3YVf3RbPry8edYhZDe112HxTrWRoo1TRHYGXevgS"


class Shown:
    """Keeps the events that a user would see."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, line: bytes, event: Event) -> None:
        self.events.append(event)

    def on_note(self, text: str) -> None:
        raise AssertionError(text)

    def on_tick(self, status: NodeStatus, peers: PeersAnswer) -> None:
        pass


def test_groups_of_others_are_shown_one_by_one_and_recorded_as_counts(tmp_path: Path) -> None:
    group = GroupOutcome(PEER, "base_conversion", 4, 1.0, 0.0, "used", None)
    decided = ForeignGroups(time_seconds=5.0, round=3, by_peer={PEER: {"used": 16}}, groups=(group,) * 16)
    home, record, shown = Home(tmp_path), RunRecord(), Shown()
    reporting = Reporting(home, record, shown, ())
    reporting.learner_event(encode_event(decided), decided)

    assert shown.events == [decided]
    assert record.rollouts.outcomes_of(PEER) == {"used": 16}
    [line] = home.metrics.read_bytes().splitlines()
    assert msgspec.json.decode(line) == {
        "event": "foreign_groups", "time_seconds": 5.0, "round": 3, "by_peer": {PEER: {"used": 16}},
    }  # fmt: skip
    _, changes = recorded_run(home.metrics, before_seconds=6.0)
    assert changes._gains._peers[PEER].groups == record.changes._gains._peers[PEER].groups == 16
