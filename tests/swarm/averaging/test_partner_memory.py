"""Whom we average with, by what exchanges with them came to, without a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

import pytest

from swarm.averaging.partner_memory import MAX_PAUSE_SECONDS, PAUSES, REMEMBERED, STRANGERS_PAUSES, PartnerMemory


def partners(
    memory: PartnerMemory,
    peers: Sequence[str],
    now_seconds: float,
    *,
    since: Mapping[str, float] | None = None,
    known: str = "",
    dialled: Sequence[str] = (),
    lot: float = 0.0,
) -> list[str]:
    return memory.partners(
        peers,
        now_seconds,
        is_stranger=lambda peer: peer != known,
        is_dialled=lambda peer: peer in dialled,
        connected_seconds=lambda peer: now_seconds - (since or {}).get(peer, 0.0),
        lot=lot,
    )


def test_a_peer_that_took_our_time_waits_and_longer_each_time_until_it_commits() -> None:
    memory = PartnerMemory().after_failure("a", 0.0, 60.0, is_stranger=True)
    assert partners(memory, ["a", "b"], PAUSES * 60.0 - 1.0) == ["b"]
    assert partners(memory, ["a", "b"], PAUSES * 60.0) == ["a", "b"]
    twice = memory.after_failure("a", 0.0, 60.0, is_stranger=True)
    assert partners(twice, ["a"], 2 * PAUSES * 60.0 - 1.0) == []
    for _ in range(40):
        twice = twice.after_failure("a", 0.0, 60.0, is_stranger=True)
    assert partners(twice, ["a"], MAX_PAUSE_SECONDS - 1.0) == [] and partners(twice, ["a"], MAX_PAUSE_SECONDS) == ["a"]
    assert partners(twice.after_commit("a", 1.0, is_stranger=True), ["a"], 1.0) == ["a"]


def test_strangers_without_trouble_are_like_all_others_and_after_a_failure_pause_together() -> None:
    peers = ["friend", "new", "newer"]
    assert partners(PartnerMemory(), peers, 0.0, known="friend") == peers
    memory = PartnerMemory().after_failure("new", 0.0, 60.0, is_stranger=True)
    assert partners(memory, peers, STRANGERS_PAUSES * 60.0 - 1.0, known="friend") == ["friend"]
    assert len(partners(memory, peers, STRANGERS_PAUSES * 60.0, known="friend")) == 2
    assert partners(memory, ["newer"], 1.0) == ["newer"], "a newcomer has nobody else"


def test_after_a_stranger_failed_one_a_search_is_drawn_by_its_stay_until_one_has_committed() -> None:
    memory, random = PartnerMemory().after_failure("gone", 0.0, 1.0, is_stranger=True), Random(1)
    peers, since = ["friend", "stays", "new"], {"stays": 200.0, "new": 900.0}
    drawn = Counter(
        peer
        for _ in range(900)
        for peer in partners(memory, peers, 1000.0, since=since, known="friend", lot=random.random())
    )
    assert drawn["friend"] == 900 == drawn["stays"] + drawn["new"]
    assert 60 <= drawn["new"] <= 140  # one in nine
    assert memory.after_commit("stays", 1.0, is_stranger=True).is_wary, "the one that failed still pauses"
    memory = memory.after_commit("stays", 1000.0, is_stranger=True)
    assert partners(memory, peers, 1000.0, since=since, known="friend") == peers


def test_a_newcomer_that_knows_nobody_takes_those_that_were_here_when_it_came() -> None:
    memory = PartnerMemory().after_failure("gone", 0.0, 0.1, is_stranger=True)
    assert partners(memory, ["a", "b", "c"], 20.0, since={"a": 0.0, "b": 9.0, "c": 11.0}) == ["a", "b"]


def test_a_newcomer_among_a_crowd_that_dialled_it_asks_those_that_it_dialled_itself_each_until_it_failed() -> None:
    since = {"crowd 1": 0.0, "crowd 2": 0.0, "a": 1.0, "b": 1.0}
    ask = partners(PartnerMemory(), list(since), 2.0, since=since, dialled=("a", "b"), lot=0.6)
    assert ask == ["a", "b", "crowd 2"]
    memory = PartnerMemory().after_failure("a", 2.0, 5.0, is_stranger=True)
    assert partners(memory, list(since), 10.0, since=since, dialled=("a", "b")) == ["b"]
    assert partners(memory, list(since), 10.0, since=since, dialled=("a", "b"), known="crowd 2") == ["crowd 2"]


def test_strangers_may_propose_on_trial_until_one_that_passed_it_has_failed() -> None:
    def may(memory: PartnerMemory, now_seconds: float, *, is_stranger: bool = True) -> bool:
        return memory.may_propose("new", now_seconds, is_stranger=is_stranger)

    memory = PartnerMemory().after_failure("other", 0.0, 5.0, is_stranger=True)
    assert may(memory, 1.0)
    memory = memory.after_failure("another", 0.0, 5.0, is_stranger=True, was_tried=True)
    assert not may(memory, 1.0) and may(memory, 1.0, is_stranger=False) and may(memory, 5.0 * STRANGERS_PAUSES)
    assert not may(PartnerMemory().after_failure("new", 0.0, 5.0, is_stranger=False), 1.0)


def test_failures_of_known_partners_close_no_door_to_strangers() -> None:
    memory = PartnerMemory().after_failure("friend", 0.0, 1.0, is_stranger=False)
    assert partners(memory, ["friend", "new"], 0.0, known="friend") == ["new"]


@pytest.mark.parametrize(("renamed_seconds", "fewest_turns"), [(60.0, 40), (360.0, 8), (3600.0, 0)])
def test_strangers_under_any_names_take_a_fortieth_of_our_time_and_leave_turns_to_a_newcomer_that_stays(
    renamed_seconds: float, fewest_turns: int
) -> None:
    hour_seconds, exchange_seconds, random = 3600.0, 10.0, Random(1)
    memory, now_seconds, lost_seconds, turns = PartnerMemory(), 0.0, 0.0, 0
    while now_seconds < hour_seconds:
        came_seconds = now_seconds // renamed_seconds * renamed_seconds
        names = [f"{number} since {came_seconds}" for number in range(8)]
        since = {"newcomer": 0.0, "friend": 0.0} | dict.fromkeys(names, came_seconds)
        found = partners(memory, list(since), now_seconds, since=since, known="friend", lot=random.random())
        taking = [name for name in names if name in found]
        if taking:  # it proposes all the time, so that it is the first
            now_seconds += exchange_seconds
            lost_seconds += exchange_seconds
            memory = memory.after_failure(taking[0], now_seconds, exchange_seconds, is_stranger=True)
        else:
            now_seconds += 20.0  # until the next search
            turns += "newcomer" in found
    assert 0.0 < lost_seconds <= hour_seconds / STRANGERS_PAUSES + exchange_seconds
    assert turns >= fewest_turns


def test_what_is_remembered_is_bounded_and_the_oldest_failure_goes_first() -> None:
    memory = PartnerMemory()
    for number in range(REMEMBERED + 1):
        memory = memory.after_failure(str(number), 0.0, 60.0, is_stranger=False)
    assert len(memory.failed) == REMEMBERED
    assert partners(memory, ["0", "1"], 1.0) == ["0"]
