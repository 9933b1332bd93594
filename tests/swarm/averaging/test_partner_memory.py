"""Whom we average with, by what exchanges with them came to, without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swarm.averaging.partner_memory import MAX_PAUSE_SECONDS, PAUSES, REMEMBERED, STAYED_SECONDS, PartnerMemory


def partners(
    memory: PartnerMemory,
    peers: Sequence[str],
    now_seconds: float,
    *,
    since: Mapping[str, float] | None = None,
    known: str = "",
) -> list[str]:
    return memory.partners(
        peers,
        now_seconds,
        is_stranger=lambda peer: peer != known,
        connected_seconds=lambda peer: now_seconds - (since or {}).get(peer, 0.0),
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
    assert partners(twice.after_commit("a", is_stranger=True), ["a"], 1.0) == ["a"]


def test_strangers_without_trouble_are_like_all_others_and_after_a_failure_pause_together() -> None:
    peers = ["friend", "new", "newer"]
    assert partners(PartnerMemory(), peers, 0.0, known="friend") == peers
    memory = PartnerMemory().after_failure("new", 0.0, 60.0, is_stranger=True)
    assert partners(memory, peers, PAUSES * 60.0 - 1.0, known="friend") == ["friend"]
    assert partners(memory, peers, PAUSES * 60.0, known="friend") == peers
    assert partners(memory, ["newer"], 1.0) == ["newer"], "a newcomer has nobody else"


def test_after_a_stranger_failed_only_those_that_stay_are_partners_until_one_has_committed() -> None:
    memory, late = PartnerMemory().after_failure("gone", 0.0, 1.0, is_stranger=True), 10_000.0
    young = {"old": 0.0, "stays": late - STAYED_SECONDS, "new": late - STAYED_SECONDS + 1.0}
    assert partners(memory, ["old", "stays", "new"], late, since=young) == ["old", "stays"]
    assert partners(memory, ["old", "stays", "new"], late, since=young, known="new") == ["old", "stays", "new"]
    memory = memory.after_commit("stays", is_stranger=True)
    assert partners(memory, ["old", "stays", "new"], late, since=young) == ["old", "stays", "new"]


def test_where_all_are_new_those_stay_that_came_first() -> None:
    memory = PartnerMemory().after_failure("gone", 0.0, 0.1, is_stranger=True)
    assert partners(memory, ["a", "b", "c"], 20.0, since={"a": 0.0, "b": 9.0, "c": 11.0}) == ["a", "b"]


def test_failures_of_known_partners_close_no_door_to_strangers() -> None:
    memory = PartnerMemory().after_failure("friend", 0.0, 1.0, is_stranger=False)
    assert partners(memory, ["friend", "new"], 0.0, known="friend") == ["new"]


def test_strangers_under_any_number_of_names_take_a_twentieth_of_our_time_and_none_from_a_newcomer_that_stays() -> None:
    hour_seconds, renamed_seconds, exchange_seconds = 3600.0, 60.0, 10.0
    memory, now_seconds, lost_seconds, open_seconds = PartnerMemory(), 0.0, 0.0, 0.0
    while now_seconds < hour_seconds:
        came_seconds = now_seconds // renamed_seconds * renamed_seconds
        name = f"since {came_seconds}"
        since = {"friend": 0.0, "newcomer": 0.0, name: came_seconds}
        found = partners(memory, list(since), now_seconds, since=since, known="friend")
        if name in found:  # it proposes all the time, so that it is the first
            now_seconds += exchange_seconds
            lost_seconds += exchange_seconds
            memory = memory.after_failure(name, now_seconds, exchange_seconds, is_stranger=True)
        else:
            now_seconds += 1.0
            open_seconds += "newcomer" in found
    assert 0.0 < lost_seconds <= hour_seconds / PAUSES
    assert open_seconds > 0.8 * hour_seconds


def test_what_is_remembered_is_bounded_and_the_oldest_failure_goes_first() -> None:
    memory = PartnerMemory()
    for number in range(REMEMBERED + 1):
        memory = memory.after_failure(str(number), 0.0, 60.0, is_stranger=False)
    assert len(memory.failed) == REMEMBERED
    assert partners(memory, ["0", "1"], 1.0) == ["0"]
