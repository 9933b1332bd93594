"""What is told of pauses, and how often."""

from __future__ import annotations

import pytest

from node.supervision.pausing.decision import PauseDecision
from node.supervision.pausing.pauses import LearnerPauses

TRAINS = PauseDecision(True, "", None)


def busy(percent: int) -> PauseDecision:
    return PauseDecision(False, f"other programs use {percent}% of the processor", None, "load")


def paused_since(notes: list[str], first: PauseDecision = TRAINS) -> LearnerPauses:
    ticks = iter(range(1000, 2000))
    return LearnerPauses(first, 300.0, notes.append, lambda: float(next(ticks)))


def test_a_load_that_changes_every_second_is_told_once_and_shown_as_it_is_now() -> None:
    notes: list[str] = []
    pauses = paused_since(notes)
    for percent in (40, 60, 50):
        pauses.follow(busy(percent), None)
    assert len(notes) == 1 and "40% of the processor" in notes[0]
    assert pauses.paused is not None and "50%" in pauses.paused.because and "50%" in pauses.doing(None)


def test_another_reason_is_told_and_the_pause_began_when_it_began() -> None:
    notes: list[str] = []
    pauses = paused_since(notes)
    pauses.follow(busy(40), None)
    since = pauses.paused.since if pauses.paused is not None else None
    pauses.follow(PauseDecision(False, "asked by its owner", None, "owner"), None)
    assert "`starling resume`" in notes[-1] and pauses.paused is not None and pauses.paused.since == since
    pauses.follow(TRAINS, None)
    assert notes[-1] == "Training again." and pauses.paused is None and pauses.doing(None) == ""
    pauses.follow(TRAINS, None)
    assert len(notes) == 3


def test_a_node_that_starts_outside_its_schedule_tells_it_once() -> None:
    notes: list[str] = []
    outside = PauseDecision(False, "outside its schedule, 22:00-07:00", None, "schedule")
    pauses = paused_since(notes, outside)
    pauses.follow(outside, None)
    pauses.follow(outside, None)
    assert len(notes) == 1


@pytest.mark.parametrize("at_once", [True, False])
def test_a_pause_while_no_learner_runs_ends_nothing(at_once: bool) -> None:
    pauses = paused_since([])
    pauses.follow(busy(40), None, at_once=at_once)
    assert pauses.paused is not None
