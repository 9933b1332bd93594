"""How a node shows averaging: on the screen, in its status, for Prometheus."""

from __future__ import annotations

import io

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from node.api.answers import peer_view
from node.api.metrics import metrics_text
from node.api.types import ChildStatus, NodeState, NodeStatus, PeersAnswer
from node.cli import wording
from node.cli.progress import PlainObserver
from node.events import Averaged, decode_event, encode_event
from node.version import VERSION
from swarm.api import ExchangeStatus, PeerStatus

HOSTILE = "\x1b[31mevil\r\nnew line\u202e"
STEP = Averaged(
    time_seconds=100.0,
    round=50,
    partner="12D3KooWx",
    because="1 × committed",
    seconds=2.5,
    encoding="sparse-2bit",
    rounds_between=3,
    sent_bytes=1_000_000,
    received_bytes=1_000_001,
    weight=1.0,
    distance=0.0123,
    outer_steps=4,
    sent_bytes_total=4_000_000,
    received_bytes_total=4_000_004,
)
NOBODY = Averaged(time_seconds=200.0, round=100, partner=None, because="2 × busy", seconds=30.0, outer_steps=4)


def status(offered: Averaged | None, averaged: Averaged | None) -> NodeStatus:
    child = ChildStatus(12, 0, None)
    return NodeStatus(
        VERSION, 1, "/h", "wren-x", "12D3KooWy", "builtin:wren", NodeState.TRAINING, 61.0, child, child, None,
        None, None, None, None, None, (), offered=offered, averaged=averaged,
    )  # fmt: skip


def samples(of: NodeStatus) -> dict[str, float]:
    families = text_string_to_metric_families(metrics_text(of, PeersAnswer(())))
    return {sample.name: sample.value for family in families for sample in family.samples}


@pytest.mark.parametrize("event", [STEP, NOBODY])
def test_the_event_survives_its_way_to_the_supervisor(event: Averaged) -> None:
    assert decode_event(encode_event(event)) == event


def test_status_tells_the_last_partner_bytes_and_what_came_of_the_last_offer() -> None:
    said = "\n".join(wording.status_lines(status(NOBODY, STEP)))
    for part in (
        "12D3KooWx",
        "after round 50",
        "1.23% apart",
        "1.0 MB received as sparse-2bit",
        "4 times",
        "2 × busy",
    ):
        assert part in said
    assert "0.25" not in said and "averaged" not in "\n".join(wording.status_lines(status(None, None)))
    assert "0.25" in wording.averaged_line(msgspec.structs.replace(STEP, weight=0.25))


def test_words_of_a_stranger_fake_no_line() -> None:
    for event in (msgspec.structs.replace(NOBODY, because=HOSTILE), msgspec.structs.replace(STEP, partner=HOSTILE)):
        assert wording.averaged_line(event).isprintable()
    last = ExchangeStatus("12D3KooWx", 1.0, 2.0, False, HOSTILE, 0, 7, HOSTILE)
    peer = PeerStatus("12D3KooWx", True, (), None, None, None, 0, 0, 0, 1.0, None)
    peer = msgspec.structs.replace(peer, exchanges_committed=1, exchanges_abandoned=2, last_exchange=last)
    (line,) = wording.peer_lines([peer_view(peer)])
    assert line.isprintable() and "2 abandoned" in line and "7 B" in line


def test_progress_shows_each_outer_step_and_why_there_is_none_once_in_a_while() -> None:
    out = io.StringIO()
    observer = PlainObserver(out)
    for event in (NOBODY, NOBODY, STEP, STEP, NOBODY):
        observer.on_event(b"", event)
    lines = out.getvalue().splitlines()
    assert ["not averaged" in line for line in lines] == [True, False, False]


def test_metrics_count_outer_steps_and_bytes_and_leave_out_what_is_not_known() -> None:
    known = samples(status(STEP, STEP))
    assert known["starling_outer_steps_total"] == 4
    assert known["starling_averaging_sent_bytes_total"] == 4_000_000
    assert known["starling_averaging_received_bytes_total"] == 4_000_004
    assert known["starling_replica_distance_ratio"] == 0.0123
    assert known["starling_averaging_timestamp_seconds"] == 100
    assert "starling_replica_distance_ratio" not in samples(status(NOBODY, None))
    assert "starling_outer_steps_total" not in samples(status(None, None))
