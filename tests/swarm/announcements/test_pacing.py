"""A node announces less often in a larger swarm, and never falls silent."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.announcements.pacing import (
    ADVERTS_AT_ONCE,
    ADVERTS_PER_SECOND,
    COUNT_SECONDS,
    FEWEST_A_SLOT,
    HEARTBEATS_PER_SECOND,
    LONGEST_ADVERT_SECONDS,
    LONGEST_HEARTBEAT_SECONDS,
    MESSAGES_PER_SECOND,
    SHORTEST_SLOT_SECONDS,
    AdvertPacing,
    SwarmPacing,
    adverts_at_once,
    adverts_per_second,
    allowance,
    heartbeat_seconds,
    messages_per_second,
    unheard_factor,
)
from swarm.announcements.sender_slots import RESERVE


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


@given(st.integers(1, 10**6), st.floats(0.1, 300.0))
def test_slots_hold_as_few_messages_as_a_node_may_send_at_once_and_are_equal_in_swarms_of_about_one_size(
    nodes: int, shortest: float
) -> None:
    may = allowance(nodes, shortest)
    rate = messages_per_second(nodes, shortest)
    assert FEWEST_A_SLOT <= may.messages_a_slot <= max(2 * FEWEST_A_SLOT, SHORTEST_SLOT_SECONDS * rate)
    assert rate * (1 - 1 / FEWEST_A_SLOT) < may.messages_a_slot / may.slot_seconds <= rate
    assert math.log2(may.slot_seconds).is_integer()


def test_a_node_that_does_not_know_yet_how_large_the_swarm_is_sends_no_more_at_once_than_is_accepted() -> None:
    seconds = 60.0  # after which it has heard everybody's heartbeat
    of_a_learner = sent(1, every_seconds=10.0, seconds=seconds) + seconds / heartbeat_seconds(1, 5.0)
    may = allowance(1000, 5.0)
    assert of_a_learner <= may.messages_a_slot + RESERVE


def test_pace_follows_the_number_of_nodes_heard_of_and_counts_what_is_held_back() -> None:
    heard, now = [0], [1000.0]
    pacing = SwarmPacing(5.0, heard_since=lambda _: heard[0], advertised_since=lambda _: heard[0], clock=lambda: now[0])
    assert pacing.heartbeat_seconds() == 5.0
    assert all(pacing.may_advertise() for _ in range(int(ADVERTS_AT_ONCE)))
    heard[0] = 959
    assert pacing.heartbeat_seconds() == 5.0
    now[0] += COUNT_SECONDS
    assert pacing.heartbeat_seconds() == 60.0
    assert pacing.allowance() == allowance(960, 5.0)
    sent_now = sum(pacing.may_advertise() for _ in range(100))
    assert pacing.adverts_held_back == 100 - sent_now > 90


def test_a_crowd_that_only_beats_costs_a_learner_half_of_its_adverts_at_most_and_one_that_advertises_more() -> None:
    def held_back(beating: int, advertising: int) -> int:
        now = [1000.0]
        pacing = SwarmPacing(
            5.0, heard_since=lambda _: beating, advertised_since=lambda _: advertising, clock=lambda: now[0]
        )
        for _ in range(200):
            now[0] += 15.0
            pacing.on_heartbeat(is_first=False)
            pacing.may_advertise()
        return pacing.adverts_held_back

    assert held_back(beating=7, advertising=7) == held_back(beating=230, advertising=7) == 0
    assert held_back(beating=230, advertising=230) > 80


def joined(nodes: int, seconds: float) -> tuple[list[float], list[SwarmPacing]]:
    """Joins a swarm whose nodes beat in turn. Returns the times of our own heartbeats, and our pace."""
    shortest_seconds, now, first_heard = 5.0, [0.0], dict[int, float]()
    pacing = SwarmPacing(
        shortest_seconds, heard_since=lambda since: len(first_heard), advertised_since=lambda _: 0, clock=lambda: now[0]
    )
    between_seconds = heartbeat_seconds(nodes, shortest_seconds) / nodes
    beats, number = [0.0], 0
    while now[0] < seconds:
        now[0] += between_seconds
        sender, number = number % nodes, number + 1
        pacing.on_heartbeat(is_first=sender not in first_heard)
        first_heard.setdefault(sender, now[0])
        if now[0] - beats[-1] >= pacing.heartbeat_seconds():
            beats.append(now[0])
    return beats, [pacing]


@pytest.mark.parametrize(("nodes", "most"), [(200, 6), (500, 3), (960, 2)])
def test_newcomer_of_a_large_swarm_beats_hardly_more_often_than_the_others_in_its_first_minute(
    nodes: int, most: int
) -> None:
    beats, (pacing,) = joined(nodes, 60.0)
    assert len(beats) <= most
    assert abs(pacing.heartbeat_seconds() - heartbeat_seconds(nodes, 5.0)) <= 0.1 * heartbeat_seconds(nodes, 5.0)


@pytest.mark.parametrize("nodes", [1, 2, 7, 30, 79])
def test_newcomer_of_a_small_swarm_is_heard_in_time_and_soon_beats_as_the_others(nodes: int) -> None:
    beats, (pacing,) = joined(nodes, 60.0)
    assert beats[1] <= 2.5 * 5.0  # after which a peer that is not heard is of no use
    assert len([seconds for seconds in beats if seconds > 15.0]) >= 8
    assert pacing.heartbeat_seconds() == 5.0


def test_newcomer_accepts_as_much_of_others_as_the_nodes_that_it_heard_may_send() -> None:
    pacing = SwarmPacing(5.0, heard_since=lambda _: 80, advertised_since=lambda _: 80, clock=lambda: 1000.0)
    for _ in range(80):
        pacing.on_heartbeat(is_first=True)
    assert pacing.heartbeat_seconds() == 60.0
    assert pacing.allowance() == allowance(81, 5.0)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0.0, 1e6))
def test_a_crowd_of_new_identities_makes_a_node_quiet_for_a_minute_at_most(
    first: int, again: int, seconds: float
) -> None:
    factor = unheard_factor(first, again, listening_seconds=seconds, longest_seconds=60.0)
    assert 1.0 <= factor <= 12.0
    assert seconds < 60.0 or factor == 1.0


def test_a_node_of_a_large_swarm_saves_no_more_adverts_than_a_minute_brings() -> None:
    assert adverts_at_once(10) == adverts_at_once(100) == ADVERTS_AT_ONCE
    assert adverts_at_once(1000) == 1.0
