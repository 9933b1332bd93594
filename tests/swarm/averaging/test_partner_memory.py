"""Whom we average with, by what exchanges with them came to, without a network."""

from __future__ import annotations

from random import Random

import pytest

from swarm.averaging.partner_memory import MAX_PAUSE_SECONDS, MIN_CHANCE, PAUSES, REMEMBERED, PartnerMemory


def open_share(memory: PartnerMemory) -> float:
    random = Random(1)
    return sum(memory.open_to_strangers(random) for _ in range(2000)) / 2000


def test_a_peer_that_took_our_time_waits_and_longer_each_time_until_it_commits() -> None:
    memory = PartnerMemory().after_failure("a", 0.0, 60.0, is_stranger=True)
    assert memory.is_pausing("a", PAUSES * 60.0 - 1.0)
    assert not memory.is_pausing("a", PAUSES * 60.0)
    assert not memory.is_pausing("b", 0.0)
    twice = memory.after_failure("a", 0.0, 60.0, is_stranger=True)
    assert twice.is_pausing("a", 2 * PAUSES * 60.0 - 1.0)
    for _ in range(40):
        twice = twice.after_failure("a", 0.0, 60.0, is_stranger=True)
    assert twice.is_pausing("a", MAX_PAUSE_SECONDS - 1.0) and not twice.is_pausing("a", MAX_PAUSE_SECONDS)
    assert not twice.after_commit("a", is_stranger=True).is_pausing("a", 1.0)


def test_strangers_without_trouble_are_like_all_others_and_after_failures_come_to_few_searches() -> None:
    memory = PartnerMemory()
    assert open_share(memory) == 1.0 and not memory.wary
    assert memory.after_failure("a", 0.0, 5.0, is_stranger=True).wary
    assert not memory.after_failure("a", 0.0, 5.0, is_stranger=False).wary
    for number in range(1000):
        memory = memory.after_failure(str(number), 0.0, 60.0, is_stranger=True)
    assert open_share(memory) == pytest.approx(MIN_CHANCE, abs=0.02)
    for number in range(5):
        memory = memory.after_commit(f"honest {number}", is_stranger=True)
    assert open_share(memory) == 1.0 and not memory.wary


def test_failures_of_known_partners_close_no_door_to_strangers() -> None:
    memory = PartnerMemory().after_failure("known", 0.0, 1.0, is_stranger=False)
    assert memory.strangers == PartnerMemory().strangers


def test_what_is_remembered_is_bounded_and_the_oldest_failure_goes_first() -> None:
    memory = PartnerMemory()
    for number in range(REMEMBERED + 1):
        memory = memory.after_failure(str(number), 0.0, 60.0, is_stranger=True)
    assert len(memory.failed) == REMEMBERED
    assert not memory.is_pausing("0", 1.0) and memory.is_pausing("1", 1.0)
