"""Whether the node trains now: the owner, the schedule, and what else the machine is used for, in this order."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from node.configuration import MachineSection, PauseCondition
from node.supervision.pausing.decision import (
    BEGIN_SECONDS,
    END_SECONDS,
    Condition,
    MachineUse,
    Order,
    PauseDecision,
    Reading,
    decide,
    met,
    next_use,
)
from node.supervision.pausing.run_control import RunControl

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp()
ALWAYS, NIGHTS = MachineSection(), MachineSection(schedule="22:00-07:00")
BATTERY = Condition("battery", "the machine runs on battery", NOON - 60, None, holds=True)
ON_BATTERY: MachineUse = {"battery": BATTERY}


def use_after(told: Iterable[tuple[float, str | None]], kind: PauseCondition = "load") -> MachineUse:
    """What is known after readings of one condition, each at a second."""
    use: MachineUse = {}
    for seconds, text in told:
        use = next_use(use, seconds, {kind: text})
    return use


def holds(use: MachineUse, kind: PauseCondition = "load") -> bool:
    return kind in use and use[kind].holds


def test_nothing_against_it_and_it_trains() -> None:
    assert decide(NOON, {}, None, ALWAYS, UTC) == PauseDecision(True, "", None)


def test_a_pause_holds_until_it_is_ended() -> None:
    decision = decide(NOON, {}, Order(False, NOON - 5), ALWAYS, UTC)
    assert decision == PauseDecision(False, "asked by its owner", None, "owner")


def test_a_pause_for_a_time_ends_by_itself() -> None:
    order = Order(False, NOON, NOON + 7200)
    assert decide(NOON + 7199, {}, order, ALWAYS, UTC) == PauseDecision(
        False, "asked by its owner", NOON + 7200, "owner"
    )
    assert decide(NOON + 7200, {}, order, ALWAYS, UTC).run


def test_outside_its_schedule_it_rests_until_that_begins() -> None:
    decision = decide(NOON, {}, None, NIGHTS, UTC)
    assert decision == PauseDecision(False, "outside its schedule, 22:00-07:00", NOON + 10 * 3600, "schedule")


def test_within_its_schedule_it_trains_until_that_ends() -> None:
    decision = decide(NOON + 12 * 3600, {}, None, NIGHTS, UTC)
    assert decision == PauseDecision(True, "within its schedule, 22:00-07:00", NOON + 19 * 3600, "schedule")


def test_asked_to_train_for_a_time_it_does_so_outside_its_schedule_and_on_battery() -> None:
    rules = MachineSection(schedule=NIGHTS.schedule, pause_when=("battery",))
    order = Order(True, NOON, NOON + 1800)
    assert decide(NOON, ON_BATTERY, order, rules, UTC) == PauseDecision(
        True, "asked by its owner to train now", NOON + 1800, "owner"
    )
    assert not decide(NOON + 1800, ON_BATTERY, order, rules, UTC).run


def test_a_use_of_the_machine_counts_only_where_it_was_configured() -> None:
    assert decide(NOON, ON_BATTERY, None, ALWAYS, UTC).run
    on_battery = decide(NOON, ON_BATTERY, None, MachineSection(pause_when=("battery",)), UTC)
    assert on_battery == PauseDecision(False, "the machine runs on battery", None, "battery")


def test_the_owner_comes_before_the_schedule_and_the_schedule_before_the_machine() -> None:
    rules = MachineSection(schedule=NIGHTS.schedule, pause_when=("battery",))
    assert decide(NOON, ON_BATTERY, Order(False, NOON), rules, UTC).because == "asked by its owner"
    assert "schedule" in decide(NOON, ON_BATTERY, None, rules, UTC).because


def test_a_short_load_pauses_nothing_and_a_long_one_does() -> None:
    begin = BEGIN_SECONDS["load"]
    assert not holds(use_after([(0.0, "busy"), (begin - 1, "busy")]))
    assert holds(use_after([(0.0, "busy"), (begin, "busy")]))


def test_a_load_with_a_gap_begins_anew() -> None:
    begin = BEGIN_SECONDS["load"]
    assert not holds(use_after([(0.0, "busy"), (begin / 2, None), (begin, "busy"), (1.5 * begin, "busy")]))


def test_after_a_load_it_rests_until_the_machine_has_been_quiet_for_long_enough() -> None:
    busy = [(0.0, "busy"), (100.0, "busy")]
    end = END_SECONDS["load"]
    assert holds(use_after([*busy, (110.0, None), (110.0 + end - 1, None)]))
    assert not holds(use_after([*busy, (110.0, None), (110.0 + end, None)]))
    assert holds(use_after([*busy, (110.0, None), (200.0, "busy"), (250.0, None), (110.0 + end, None)]))


def test_it_says_when_it_will_train_again_if_the_machine_stays_quiet() -> None:
    use = use_after([(NOON, "busy"), (NOON + 100, "busy"), (NOON + 110, None)])
    decision = decide(NOON + 120, use, None, MachineSection(pause_when=("load",)), UTC)
    assert decision == PauseDecision(False, "busy", NOON + 110 + END_SECONDS["load"], "load")


def test_battery_pauses_at_once() -> None:
    assert holds(use_after([(0.0, "on battery")], "battery"), "battery")


def test_what_the_system_does_not_tell_changes_nothing() -> None:
    before = use_after([(0.0, "busy"), (100.0, "busy")])
    assert next_use(before, 5000.0, met(Reading(), ALWAYS)) == before


def test_a_clock_that_was_set_back_does_not_keep_it_resting_for_hours() -> None:
    use = use_after(
        [(1e6, "busy"), (1e6 + 100, "busy"), (1e6 + 110, None), (5.0, None), (5.0 + END_SECONDS["load"], None)]
    )
    assert not holds(use)


def test_readings_are_told_in_words() -> None:
    told = met(Reading(0.62, 0.93, "game", True, True), ALWAYS)
    assert told == {
        "load": "other programs use 62% of the processor",
        "gpu": "another program (game) uses 93% of the GPU",
        "battery": "the machine runs on battery",
        "metered": "the network connection is metered",
    }
    assert met(Reading(0.2, 0.05, "", False, False), ALWAYS) == dict.fromkeys(told)


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_pause_outlives_the_node_and_ends_with_its_time(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "pause.json"
    assert not RunControl(file, MachineSection(), clock=clock).pause(3600.0).run
    assert not RunControl(file, MachineSection(), clock=clock).now().run
    clock.now += 3600
    assert RunControl(file, MachineSection(), clock=clock).now().run
    assert not file.exists()


def test_resume_ends_the_owners_pause_alone(tmp_path: Path, clock: Clock) -> None:
    never = f"{datetime.fromtimestamp(NOON + 3600 * 4):%H:%M}-{datetime.fromtimestamp(NOON + 3600 * 5):%H:%M}"
    control = RunControl(tmp_path / "pause.json", MachineSection(schedule=never), clock=clock)
    control.pause(None)
    assert "schedule" in control.resume(None).because and not control.now().run
    assert control.resume(1800.0).run
    clock.now += 1800
    assert not control.now().run


def test_a_pause_that_cannot_be_written_down_holds_and_says_so(tmp_path: Path, clock: Clock) -> None:
    control = RunControl(tmp_path / "missing" / "pause.json", MachineSection(), clock=clock)
    assert not control.pause(None).run and not control.now().run
    assert control.failure is not None and "next start" in control.failure


@pytest.mark.parametrize("content", [b"", b"{", b'{"run": 3}', b"[]"])
def test_a_damaged_pause_file_is_none(tmp_path: Path, clock: Clock, content: bytes) -> None:
    file = tmp_path / "pause.json"
    file.write_bytes(content)
    assert RunControl(file, MachineSection(), clock=clock).now().run
