"""What a node says after its first rounds, once: what it begins with, and when the first result comes."""

from __future__ import annotations

import pytest

from node.api.run_changes import RunChanges
from node.supervision.outlook import ALONE, Outlook, in_about
from tests.factories import round_done


def told(outlook: Outlook, *rounds: tuple[int, float], alone: bool = False) -> list[list[str]]:
    """The lines after each round, given by its number and seconds."""
    changes, said = RunChanges(), []
    for number, seconds in rounds:
        done = round_done(number, seconds=seconds, reward_by_task={"add": 0.25}, completions_by_task={"add": 8})
        changes.add(done)
        said.append(outlook.saw(done, changes.gains, alone=alone))
    return said


def test_after_three_fast_rounds_it_says_once_when_the_first_measurement_comes() -> None:
    nothing, still_nothing, (line,), later = told(Outlook(0, 50), (1, 5.0), (2, 1.0), (3, 1.4), (4, 1.0))
    assert nothing == still_nothing == later == []
    assert "0.25 over 1 task" in line and "about 1.2 s" in line  # without the first round, which compiles
    assert "after round 50" in line and in_about(47 * 1.2) in line


def test_one_slow_round_is_enough_and_being_alone_is_said() -> None:
    ((line, alone),) = told(Outlook(0, 50), (1, 40.0), alone=True)
    assert in_about(49 * 40.0) in line and alone == ALONE


def test_a_run_that_goes_on_says_what_became_of_it_and_when_it_is_measured_next() -> None:
    (line,) = told(Outlook(0, 50), (348, 1.0), (349, 1.0), (350, 1.0))[-1]
    assert RunChanges().gains().sentence not in line and "mean reward over 1 task" in line and "after round 400" in line


def test_a_start_that_ends_before_it_is_measured_says_when_it_ends() -> None:
    (line,) = told(Outlook(20, 50), (1, 1.0), (2, 1.0), (3, 1.0))[-1]
    assert "20 rounds" in line and "round 50" not in line
    (line,) = told(Outlook(0, 0), (1, 1.0), (2, 1.0), (3, 1.0))[-1]
    assert "starling top" in line


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(3.0, "in less than a minute"), (61.0, "in about 1 minute"), (600.0, "in about 10 minutes"), (9000.0, "2 hours")],
)
def test_times_are_said_as_roughly_as_they_are_known(seconds: float, words: str) -> None:
    assert words in in_about(seconds)
