"""The schedule of disturbances, and what the watch makes of processes: pure, without a process."""

from __future__ import annotations

from itertools import pairwise

from scripts.chaos.chaos_run import TRACEBACK, tracebacks
from scripts.chaos.disturbances import HELD_SECONDS, KILLS, NEED_GROUPS, Kind, drawn, is_kept_alive
from scripts.chaos.marked_processes import SUPERVISOR, SWARM, Identity, SeenProcess
from scripts.chaos.process_watch import LIFE_SECONDS, ORPHAN_SECONDS, ZOMBIE_SECONDS, ProcessWatch, median_of, most_of

NODES, SECONDS, DISKS = 24, 3600.0, frozenset({0, 3})
MIB = 1 << 20


def seen(
    kind: str, pid: int, *, parent: int = 1, resident_bytes: int = MIB, swapped_bytes: int = 0, stopped: bool = False
) -> SeenProcess:
    return SeenProcess(Identity(pid, 1), 0, kind, parent, stopped, resident_bytes, swapped_bytes, 10, 0.5)


def test_one_seed_draws_one_schedule_and_every_kind_is_in_it() -> None:
    schedule = drawn(7, NODES, SECONDS, frozenset(Kind), DISKS)
    assert schedule == drawn(7, NODES, SECONDS, frozenset(Kind), DISKS)
    assert schedule != drawn(8, NODES, SECONDS, frozenset(Kind), DISKS)
    assert {each.kind for each in schedule} == set(Kind)


def test_every_disturbance_is_over_in_time_and_none_of_a_kind_overlap_on_a_node() -> None:
    schedule = drawn(7, NODES, SECONDS, frozenset(Kind), DISKS)
    for kind in HELD_SECONDS:
        for node in range(NODES):
            of_node = [each for each in schedule if each.kind is kind and (each.nodes == (node,))]
            assert all(one.until_seconds <= next_one.at_seconds for one, next_one in pairwise(of_node))
            assert all(each.until_seconds <= SECONDS for each in of_node)


def test_of_two_that_limit_the_memory_of_a_node_one_is_over_before_the_other_begins() -> None:
    schedule = drawn(7, 2, SECONDS, NEED_GROUPS, frozenset())
    assert {each.kind for each in schedule} == NEED_GROUPS
    assert all(one.until_seconds <= next_one.at_seconds for one, next_one in pairwise(schedule))


def test_some_nodes_lose_no_process_and_only_small_disks_are_filled() -> None:
    schedule = drawn(7, NODES, SECONDS, frozenset(Kind), DISKS)
    assert not any(is_kept_alive(each.nodes[0]) for each in schedule if each.kind in KILLS)
    assert {each.nodes[0] for each in schedule if each.kind is Kind.FULL_DISK} == DISKS
    assert DISKS.isdisjoint(each.nodes[0] for each in schedule if each.kind is Kind.SWAPPING)
    assert not any(each.kind is Kind.FULL_DISK for each in drawn(7, NODES, SECONDS, frozenset(Kind), frozenset()))


def test_memory_that_grows_after_the_warm_up_is_told_and_a_cache_that_fills_is_not() -> None:
    watch = ProcessWatch()
    for second in range(0, int(2 * LIFE_SECONDS), 5):
        leaking = seen(SWARM, 2, resident_bytes=100 * MIB + second * MIB)
        filling = seen(SUPERVISOR, 1, resident_bytes=min(60, second) * MIB)
        watch.judge([leaking, filling], [], now=float(second))
    growth = watch.growth()
    assert most_of(growth, SWARM)[0] > 100 * MIB
    assert median_of(growth, SUPERVISOR) == (0.0, 0.0)


def test_memory_that_comes_back_from_swap_is_no_growth() -> None:
    watch = ProcessWatch()
    for second in range(0, int(2 * LIFE_SECONDS), 5):
        swapped = 50 * MIB if second < LIFE_SECONDS else 0
        watch.judge([seen(SWARM, 2, resident_bytes=80 * MIB - swapped, swapped_bytes=swapped)], [], now=float(second))
    assert most_of(watch.growth(), SWARM) == (0.0, 0.0)
    assert watch.most_swapped_bytes[SWARM] == 50 * MIB


def test_a_child_without_a_supervisor_is_told_once_unless_it_is_stopped() -> None:
    watch = ProcessWatch()
    lost, stopped = seen(SWARM, 2), seen(SWARM, 3, stopped=True)
    assert watch.judge([lost, stopped], [], now=0.0) == []
    (told,) = watch.judge([lost, stopped], [], now=ORPHAN_SECONDS + 1.0)
    assert "swarm 2 of node 0" in told
    assert watch.judge([lost, stopped], [], now=ORPHAN_SECONDS + 2.0) == []


def test_a_child_that_nobody_waited_for_is_told_once() -> None:
    watch, ended = ProcessWatch(), [Identity(5, 1)]
    assert watch.judge([], ended, now=0.0) == []
    assert len(watch.judge([], ended, now=ZOMBIE_SECONDS + 1.0)) == 1
    assert watch.judge([], ended, now=ZOMBIE_SECONDS + 2.0) == []


def test_a_traceback_that_tells_of_missing_memory_is_a_violation_only_where_none_was_taken_away() -> None:
    without, other = f"{TRACEBACK}:\n  in f\nMemoryError\n", f"{TRACEBACK}:\n  in g\nKeyError: 'x'\n"
    assert len(tracebacks(without, lacked_memory=False)) == 1
    assert tracebacks(without, lacked_memory=True) == []
    assert tracebacks(other, lacked_memory=True) == [other]
    assert tracebacks("all is well", lacked_memory=False) == []
