"""The records of peers: how a standing is earned and lost, and who is forgotten first."""

from __future__ import annotations

from node.learner.foreign.peer_records import (
    HELD_TO_BE_PROVEN,
    MAX_REMEMBERED_PEERS,
    MAX_REST_SECONDS,
    MIN_RELIABILITY,
    PROVEN_RELIABILITY,
    REST_SECONDS,
    PeerRecords,
)
from swarm.announcements.crowding import Standing

NOW = 1_000_000.0


def records_with(*proven: str) -> PeerRecords:
    records = PeerRecords()
    for peer in proven:
        for _ in range(HELD_TO_BE_PROVEN):
            records.held(peer, NOW)
    return records


def test_reliability_is_earned_back_by_claims_that_hold_and_a_missing_blob_costs_less_than_a_lie() -> None:
    peers = PeerRecords()
    peers.lied("bob", NOW)
    assert peers.standing("bob") is Standing.LAST
    for _ in range(4):
        peers.held("bob", NOW + MAX_REST_SECONDS)
    assert peers.standing("bob") is Standing.PROVEN
    peers.missed("cid", NOW)
    assert MIN_RELIABILITY < peers.of("cid").reliability < 1
    for _ in range(50):
        peers.copied("eve")
    assert MIN_RELIABILITY <= peers.of("eve").reliability < PROVEN_RELIABILITY


def test_peer_that_does_not_serve_rests_longer_each_time_and_loses_its_standing() -> None:
    peers = records_with("absent")
    assert peers.standing("absent") is Standing.PROVEN
    for failures in range(1, 4):
        at_seconds = NOW + 1000 * failures
        peers.missed("absent", at_seconds)
        peers.missed("absent", at_seconds)  # another group of the same fetch
        rest_seconds = REST_SECONDS * 2 ** (failures - 1)
        assert peers.rests("absent", at_seconds + rest_seconds - 0.1)
        assert not peers.rests("absent", at_seconds + rest_seconds)
    assert peers.standing("absent") is not Standing.PROVEN
    peers.held("absent", NOW + 9000)
    assert peers.of("absent").failures == 0


def test_peer_that_serves_one_group_and_not_the_others_fails_all_the_same() -> None:
    peers = records_with("eve")
    peers.missed("eve", NOW)
    for _ in range(8):
        peers.held("eve", NOW + 1)
    assert peers.of("eve").failures == 1
    assert peers.standing("eve") is not Standing.PROVEN


def test_strangers_records_push_out_no_proven_peer() -> None:
    peers = records_with("ann")
    for number in range(2 * MAX_REMEMBERED_PEERS):
        peers.lied(f"sybil {number}", NOW)
    assert len(peers) == MAX_REMEMBERED_PEERS
    assert peers.standing("ann") is Standing.PROVEN


def test_clock_that_was_set_back_lets_nobody_rest_for_long() -> None:
    peers = PeerRecords()
    peers.missed("ann", NOW)
    assert peers.rests("ann", NOW)
    assert not peers.rests("ann", NOW - 2 * MAX_REST_SECONDS)
