"""Honest nodes in virtual time: they come back from every fault, and what is counted of them is theirs."""

from __future__ import annotations

import logging
from pathlib import Path

import anyio
import pytest
from trio.testing import MockClock

from scripts.chaos.honest_days import Accusations, Days, slope


def test_a_node_that_was_killed_and_one_that_left_come_back_and_are_used_again(tmp_path: Path) -> None:
    clock, heard = MockClock(autojump_threshold=0), Accusations()
    seen: list[tuple[Days, int]] = []

    async def main() -> None:
        days = Days(2, 600.0 / 86400.0, round_seconds=20.0, faults=0.0, folder=tmp_path, clock=clock, heard=heard)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(days.run)
            await anyio.sleep(60.0)
            for home, killed in zip(days.homes, (True, False), strict=True):
                before = home.host
                await days.restart(home, killed=killed, tasks=tasks)
                assert home.host is not before and home.host.peer_id == before.peer_id
            seen.append((days, days.used))
            await anyio.sleep(100.0)
            tasks.cancel_scope.cancel()

    anyio.run(main, backend="trio", backend_options={"clock": clock})
    ((days, used),) = seen
    assert 0 < used < days.used and days.lowest >= 0.5 and days.banned == []


def test_reports_are_counted_by_conduct_and_reason_whoever_made_them() -> None:
    heard = Accusations()
    log = logging.getLogger("honest days in a test")
    log.setLevel(logging.DEBUG)
    log.addHandler(heard)
    log.debug("%s: %s: %s", "ann", "stalled", "sent 12 bytes of an answer in 5 s")
    log.debug("%s: %s: %s", "bob", "stalled", "sent 700 bytes of an answer in 9 s")
    heard.troubled = "bob"
    log.debug("%s: %s: %s", "bob", "stalled", "sent 0 bytes of an answer in 5 s")
    why = "sent bytes of an answer in s"
    assert heard.by_reason == {("stalled", False, why): 2, ("stalled", True, why): 1}


def test_growth_is_the_slope_of_a_least_squares_line_and_its_standard_error() -> None:
    assert slope([0.0, 1.0, 2.0, 3.0], [5.0, 7.0, 9.0, 11.0]) == pytest.approx((2.0, 0.0), abs=1e-9)
    a_day, error = slope([0.0, 1.0, 2.0, 3.0], [1.0, -1.0, -1.0, 1.0])
    assert a_day == pytest.approx(0.0, abs=1e-9)
    assert error == pytest.approx((4.0 / 2.0 / 5.0) ** 0.5)
