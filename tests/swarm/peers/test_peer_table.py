"""What is kept of peers that come and go."""

from __future__ import annotations

from swarm.peers.peer_table import PeerTable


def test_a_heartbeat_from_before_a_goodbye_that_arrives_after_it_brings_nobody_back() -> None:
    table = PeerTable()
    notes = table.of("a")
    notes.heartbeat_sequence = 7
    table.leave("a", 100.0)
    assert notes.has_left
    assert not notes.is_news(8, 99.0)
    assert notes.is_news(0, 101.0)  # started again: it counts from the beginning
