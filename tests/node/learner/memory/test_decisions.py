"""What follows when a phase ran out of memory: what is halved, when it waits, when it gives up."""

from __future__ import annotations

from itertools import pairwise

import pytest

from node.fit.fitted import FLOORS, Sizes
from node.learner.memory.decisions import (
    MAX_REPEATS,
    MAX_WAIT_SECONDS,
    QUIET_ROUNDS,
    RULES,
    Attempts,
    MemoryDecision,
    Phase,
    decide,
    grown,
)
from node.learner.memory.device_memory import DeviceMemory

GIB = 1 << 30
SIZES = Sizes(8, 2048)
OURS = DeviceMemory(total_bytes=24 * GIB, free_bytes=3 * GIB, own_bytes=20 * GIB)
TAKEN = DeviceMemory(total_bytes=24 * GIB, free_bytes=1 * GIB, own_bytes=3 * GIB)


def until_it_ends(phase: Phase, memory: DeviceMemory | None, most: int = 40) -> list[MemoryDecision]:
    """Returns every decision for a phase that fails again and again."""
    decisions: list[MemoryDecision] = []
    sizes, attempts = SIZES, Attempts()
    while len(decisions) < most and (not decisions or decisions[-1].then not in ("skip", "give up")):
        decisions.append(decide(phase, sizes, FLOORS, attempts, memory))
        sizes, attempts = decisions[-1].sizes, decisions[-1].attempts
    return decisions


def test_generating_halves_the_rows_and_learning_the_pass_down_to_the_floor() -> None:
    rows = [d.sizes for d in until_it_ends("generate", None) if d.then == "halve"]
    assert rows == [Sizes(4, 2048), Sizes(2, 2048), Sizes(1, 2048)]
    passes = [d.sizes for d in until_it_ends("learn", None) if d.then == "halve"]
    assert passes == [Sizes(8, 1024), Sizes(8, 512), Sizes(8, 256)]
    assert {d.halved for d in until_it_ends("learn", None)} == {"batch_tokens", None}


def test_a_pass_is_recomputed_before_it_becomes_small_where_that_is_allowed() -> None:
    allowed, sizes, seen = Sizes(1, 1024, recompute=True), Sizes(8, 16384), list[Sizes]()
    while (decision := decide("learn", sizes, allowed, Attempts(repeats=1), None)).then in ("halve", "recompute"):
        assert decision.attempts == Attempts() and (decision.halved is None) == (decision.then == "recompute")
        seen.append(sizes := decision.sizes)
    assert seen == [
        Sizes(8, 8192), Sizes(8, 4096), Sizes(8, 4096, True), Sizes(8, 2048, True), Sizes(8, 1024, True),
    ]  # fmt: skip


def test_a_pass_at_its_floor_is_recomputed_and_generating_never() -> None:
    allowed = Sizes(1, 256, recompute=True)
    assert decide("learn", Sizes(1, 256), allowed, Attempts(), None).sizes == Sizes(1, 256, True)
    assert decide("generate", Sizes(1, 256), allowed, Attempts(), None).then == "again"


def test_recomputation_ends_after_passes_have_grown_back() -> None:
    most = Sizes(8, 4096)
    assert grown(Sizes(8, 2048, True), most, QUIET_ROUNDS) == Sizes(8, 4096, True)
    assert grown(Sizes(8, 4096, True), most, 2 * QUIET_ROUNDS) == most
    assert grown(Sizes(8, 4096, True), Sizes(8, 4096, True), QUIET_ROUNDS) == Sizes(8, 4096, True)


@pytest.mark.parametrize("memory", [None, OURS])
@pytest.mark.parametrize("phase", list(RULES))
def test_on_a_device_of_our_own_every_phase_ends_after_two_repeats_as_it_is(
    phase: Phase, memory: DeviceMemory | None
) -> None:
    decisions = [d for d in until_it_ends(phase, memory) if d.then != "halve"]
    assert [d.then for d in decisions] == ["again"] * MAX_REPEATS + ["give up" if RULES[phase].required else "skip"]


def test_a_round_that_needs_it_waits_for_other_programs_longer_and_longer() -> None:
    decisions = until_it_ends("learn", TAKEN)
    waits = [d.wait_seconds for d in decisions if d.then == "wait"]
    assert waits[:3] == [5.0, 10.0, 20.0] and waits[-1] == MAX_WAIT_SECONDS
    assert all(one <= other for one, other in pairwise(waits))
    assert decisions[-1].then == "wait"  # it never gives up


def test_what_may_be_left_out_is_not_waited_for() -> None:
    assert until_it_ends("checkpoint", TAKEN)[-1].then == "skip"


def test_a_size_below_the_floor_is_left_as_a_person_set_it() -> None:
    decision = decide("learn", Sizes(8, 100), FLOORS, Attempts(), None)
    assert decision.then == "again" and decision.sizes == Sizes(8, 100)


def test_what_others_hold_is_what_is_neither_free_nor_ours() -> None:
    assert TAKEN.others_bytes == 20 * GIB
    assert DeviceMemory(10, 8, 5).others_bytes == 0  # read at slightly different times


def test_a_long_quiet_time_doubles_once_and_never_above_the_plan() -> None:
    most = Sizes(8, 8192)
    assert grown(SIZES, most, QUIET_ROUNDS - 1) == SIZES
    assert grown(SIZES, most, QUIET_ROUNDS) == Sizes(8, 4096)
    assert grown(SIZES, most, 0) == SIZES
