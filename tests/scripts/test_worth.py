"""The experiment on what a foreign group is worth: its skills, and its comparison at equal seconds."""

from __future__ import annotations

import msgspec
import pytest

from scripts.experiments.harness.plans import Measurement, NodeHistory, RunResult
from scripts.experiments.harness.skills import EIGHT_SKILLS, HARDER, SKILLS, alphabet_of
from scripts.experiments.models import PAIRS
from scripts.experiments.worth import AUTO, EXPERIMENT, TODAY, at_seconds, changes_of_had, mean_of_lacking, plan


def test_harder_skills_compute_with_letters_for_digits() -> None:
    assert {name: task.answer("djcj") for name, task in HARDER.items()} == {
        "sorting": "cdjj",
        "running_sums": "dced",  # 3, 3 + 9, + 2, + 9, modulo ten
        "two_steps": "adae",  # backwards, each letter one on
        "addition": "baea",  # 392 + 9 = 401, the last digit first
    }
    assert len({task.tag for task in EIGHT_SKILLS.values()}) == len(EIGHT_SKILLS)
    assert len(alphabet_of(EIGHT_SKILLS)) == len(alphabet_of(SKILLS)) + len(HARDER)


def test_every_skill_is_had_by_one_node_and_lacked_by_the_others() -> None:
    assert sorted(skill for recipe in PAIRS for skill, _ in recipe.taught) == sorted(EIGHT_SKILLS)


def result(cpu_at: list[float], *lacked: float) -> RunResult:
    """Returns a run of one node that has "swap", which falls, and lacks all others, which reach ``lacked``."""
    (today,) = [each for each in EXPERIMENT.conditions if each.name == TODAY]
    made = plan(today, 0, 20)
    measurements = [
        Measurement(at, {s: 0.9 - 0.1 * n if s == "swap" else value for s in ("swap", "rotate")}, {})
        for n, (at, value) in enumerate(zip((0, 10, 20), lacked, strict=True))
    ]
    node = NodeHistory("ann", "m", [], [], [], [], 0, 0, 0, 0, 0, {}, measurements)
    made = msgspec.structs.replace(made, measure_at=(0, 10, 20))
    return RunResult("k", TODAY, 0, 1.0, 1.0, [node], made, cpu_at=cpu_at)


def test_values_between_two_measurements_are_interpolated_by_processor_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    run = result([0.0, 4.0, 6.0], 0.0, 0.2, 0.6)
    assert [at_seconds(run, seconds, float) for seconds in (0.0, 2.0, 5.0, 9.0)] == [0, 5, 15, 20]
    monkeypatch.setattr("scripts.experiments.worth.EIGHT_SKILLS", ("rotate",))
    assert mean_of_lacking(run, 5.0) == pytest.approx(0.4)
    assert changes_of_had(run, 5.0) == {("ann", "swap"): pytest.approx(-0.15)}


def test_the_defaults_are_what_is_compared_with_the_number_before() -> None:
    foreign = {each.name: each.settings["learner"]["foreign_groups"] for each in EXPERIMENT.conditions}
    assert (foreign[TODAY], foreign[AUTO]) == (16, "auto")
