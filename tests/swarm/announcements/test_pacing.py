"""A node announces less often in a larger swarm, and never falls silent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.announcements.pacing import (
    ADVERTS_AT_ONCE,
    ADVERTS_PER_SECOND,
    HEARTBEATS_PER_SECOND,
    LONGEST_ADVERT_SECONDS,
    LONGEST_HEARTBEAT_SECONDS,
    MESSAGES_PER_SECOND,
    AdvertPacing,
    adverts_per_second,
    heartbeat_seconds,
    messages_per_second,
)


def test_small_swarm_beats_as_configured() -> None:
    assert heartbeat_seconds(1, 5.0) == heartbeat_seconds(80, 5.0) == 5.0


@given(st.integers(80, 960))
def test_heartbeats_of_a_whole_swarm_come_at_one_rate_whatever_its_size(nodes: int) -> None:
    assert abs(nodes / heartbeat_seconds(nodes, 5.0) - HEARTBEATS_PER_SECOND) < 1e-9
    assert abs(nodes * adverts_per_second(nodes) - ADVERTS_PER_SECOND) < 1e-9


@given(st.integers(1, 10**9), st.floats(0.1, 300.0))
def test_invented_nodes_make_nobody_silent(nodes: int, shortest_seconds: float) -> None:
    assert heartbeat_seconds(nodes, shortest_seconds) <= max(shortest_seconds, LONGEST_HEARTBEAT_SECONDS)
    assert adverts_per_second(nodes) >= 1.0 / LONGEST_ADVERT_SECONDS


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_nodes_that_count_half_as_many_as_their_receivers_are_accepted(nodes: int, shortest: int) -> None:
    sends = 1.0 / heartbeat_seconds(max(1, nodes // 2), shortest) + adverts_per_second(max(1, nodes // 2))
    assert messages_per_second(nodes, shortest) >= min(sends, MESSAGES_PER_SECOND)


def sent(nodes: int, every_seconds: float, seconds: float) -> int:
    pacing, times = AdvertPacing(now_seconds=0.0), int(seconds / every_seconds)
    return sum(pacing.may_send(nodes, now_seconds=number * every_seconds) for number in range(times))


def test_adverts_beyond_the_share_of_a_node_are_held_back() -> None:
    assert sent(2, every_seconds=1.0, seconds=100.0) == 100
    assert sent(100, every_seconds=1.0, seconds=1000.0) <= 1000.0 * adverts_per_second(100) + ADVERTS_AT_ONCE + 8
    assert sent(10**6, every_seconds=1.0, seconds=1200.0) >= 10
