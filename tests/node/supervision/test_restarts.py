"""When a child that ended is restarted, and how its end is described."""

from __future__ import annotations

import signal

import pytest

from node.supervision.children import last_words
from node.supervision.outcome import RunOutcome
from node.supervision.restarts import MAX_DELAY_SECONDS, MAX_SHORT_LIVES, ChildEnd, Restart, decide, describe
from swarm.exit_codes import ExitCode


def end(returncode: int = 1, lived: float = 5.0, useful: bool = False, words: tuple[str, ...] = ()) -> ChildEnd:
    return ChildEnd(returncode, lived, useful, words)


def test_the_first_ends_are_followed_by_starts_that_wait_longer_and_longer() -> None:
    delays = []
    for number in range(1, MAX_SHORT_LIVES):
        decision = decide("learner", [end()] * number)
        assert isinstance(decision, Restart)
        delays.append(decision.after_seconds)
    assert delays == sorted(set(delays)) and delays[-1] <= MAX_DELAY_SECONDS


def test_the_fifth_short_life_in_a_row_ends_the_node_with_the_reason() -> None:
    decision = decide("learner", [end(words=("RuntimeError: no",))] * MAX_SHORT_LIVES)
    assert isinstance(decision, RunOutcome) and decision.exit_code is ExitCode.FAULT
    assert "exit code 1" in decision.because and "RuntimeError: no" in decision.because


def test_child_that_the_system_has_no_room_for_is_started_again_for_as_long_as_it_takes() -> None:
    no_room = ChildEnd(0, 0.0, False, (), not_started="Too many open files")
    for number in range(1, 100):
        decision = decide("learner", [no_room] * number)
        assert isinstance(decision, Restart) and decision.after_seconds <= MAX_DELAY_SECONDS
    assert describe("learner", no_room) == "learner could not be started: Too many open files"
    assert isinstance(decide("learner", [no_room] * 9 + [end()] * (MAX_SHORT_LIVES - 1)), Restart)
    assert isinstance(decide("learner", [no_room] * 9 + [end()] * MAX_SHORT_LIVES), RunOutcome)


@pytest.mark.parametrize("good", [end(useful=True), end(lived=3600.0)])
def test_a_life_that_was_of_use_or_long_begins_the_count_anew(good: ChildEnd) -> None:
    assert decide("learner", [end()] * (MAX_SHORT_LIVES - 1) + [good]) == Restart(0.5)
    assert isinstance(decide("learner", [end()] * (MAX_SHORT_LIVES - 1) + [good, end()]), Restart)


@pytest.mark.parametrize("code", [69, 77, 78])
def test_a_cause_that_another_start_does_not_mend_ends_the_node_at_once(code: int) -> None:
    decision = decide("swarm", [end(code, words=("port in use",))])
    assert isinstance(decision, RunOutcome) and decision.exit_code == code and "port in use" in decision.because


def test_the_same_code_after_a_life_of_use_is_followed_by_another_start() -> None:
    assert isinstance(decide("swarm", [end(69, useful=True)]), Restart)


def test_a_kill_is_told_with_its_likely_cause() -> None:
    assert "out of memory" in describe("learner", end(-signal.SIGKILL))
    assert "SIGSEGV" in describe("learner", end(-signal.SIGSEGV))
    assert "signal 200" in describe("learner", end(-200))


def test_last_words_are_shown_without_what_could_rule_a_terminal() -> None:
    said = describe("learner", end(1, words=("\x1b[2Jgone\x07", "[bold]x")))
    assert "\x1b" not in said and "\\x1b[2Jgone\\x07" in said and "[bold]x" in said


def test_lines_from_long_before_the_end_are_no_last_words() -> None:
    ended_seconds = 1000.0
    lines = [(160.0, "a warning of fourteen minutes ago"), (941.0, "an error"), (1000.5, "Killed")]
    assert last_words(lines, ended_seconds) == ("an error", "Killed")
    assert last_words(lines[:1], ended_seconds) == ()
