"""What the simulation of a swarm counts: when its network is parted, and which searches for a partner count."""

from __future__ import annotations

from itertools import pairwise

import pytest

from scripts.bench.scale.delivery import Phase, phase
from scripts.bench.scale.disturbances import AFTER_PARTITION_SECONDS, PARTITION_SECONDS, Calm, partitions
from scripts.bench.scale.searches import Search, committed_share, counted, reasons


def search(began_seconds: float, *, found: bool, because: str = "", is_calm: bool = True) -> Search:
    return Search(began_seconds, 1.0 if found else 30.0, is_calm, found, because, 3)


def test_failures_that_began_before_the_count_do_not_stand_beside_successes_that_began_in_it() -> None:
    """Of searches of 30 s that end within 26 s, every failure began before: nine in ten found somebody, and all of
    those that began within the time."""
    began_before = [search(-6.0 + n, found=False) for n in range(5)]
    began_within = [search(float(n), found=True) for n in range(20)]
    noted = [*began_before, *began_within]
    assert committed_share(noted) == 0.8
    assert committed_share(counted(noted, from_seconds=0.0, to_seconds=26.0)) == 1.0


def test_searches_of_a_partition_do_not_count() -> None:
    noted = [search(1.0, found=False, is_calm=False), search(2.0, found=True)]
    assert committed_share(counted(noted, from_seconds=0.0, to_seconds=10.0)) == 1.0


def test_reasons_are_added_up_over_the_searches_that_found_nobody() -> None:
    peer = "12D3KooWKJkUUGsSvgomZdd7M5ZhHQXdD7mJBHCfCcKeTQ9ZZuLn"
    noted = [
        search(0.0, found=False, because=f"3 × busy, 1 × {peer} is gone"),
        search(0.0, found=False, because="2 × busy"),
        search(0.0, found=False, because="no peer of the family was there"),
        search(0.0, found=True, because="5 × not now"),
    ]
    assert reasons(noted) == {"busy": 5, "a peer is gone": 1, "no peer of the family was there": 1}


@pytest.mark.parametrize("minutes", [1.0, 4.0, 10.0])
def test_a_partition_lasts_a_ninth_of_the_time_and_leaves_calm_before_the_next(minutes: float) -> None:
    planned = partitions(minutes)
    for each in planned:
        assert each.ends_seconds - each.begins_seconds == pytest.approx(min(PARTITION_SECONDS, 60.0 * minutes / 9))
    for one, next_one in pairwise(planned):
        assert next_one.begins_seconds - one.ends_seconds > AFTER_PARTITION_SECONDS
    assert len(planned) == (1 if minutes == 1.0 else 2)


def test_announcements_are_told_apart_by_the_time_since_the_network_was_healed() -> None:
    now_seconds = 100.0
    calm = Calm(lambda: now_seconds)
    assert phase(calm, now_seconds) is Phase.BEFORE
    calm.disturb(60.0)
    found = []
    for now_seconds in (130.0, 160.0, 176.0, 190.0, 204.0, 206.0):
        found.append(phase(calm, now_seconds))
    assert found == [None, Phase.HEALED_15, Phase.HEALED_30, Phase.HEALED_45, Phase.HEALED_45, Phase.AFTER]
