"""Which skills fell in a run, and how far."""

from __future__ import annotations

import pytest
from msgspec import structs

from scripts.experiments.harness.plans import Measurement, NodeHistory, RunPlan, RunResult
from scripts.experiments.reports.success import at_parting, end_of, falls, greatest_fall, mean_change

PLAN = RunPlan("e", "c", 0, 4, (), (), (), 1, 0)


def parted(*measured: dict[str, float], seed: int = 0) -> RunResult:
    """Measured every second round; the peers go after round 2."""
    found = [Measurement(2 * n, success, success) for n, success in enumerate(measured)]
    nothing: list[float | None] = [None] * 4
    node = NodeHistory("n", "m", [0.0] * 4, [10] * 4, nothing, nothing, 0, 0, 0, 0, 0, {}, found)
    return RunResult("k", "c", seed, 1.0, 1.0, [node], structs.replace(PLAN, parted_after=2))


def test_a_skill_falls_from_what_it_was_when_the_peers_went_and_what_was_none_cannot_fall() -> None:
    first = parted({"a": 0.2, "b": 0.9, "c": 0.05}, {"a": 0.8, "b": 0.5, "c": 0.09}, {"a": 0.5, "b": 0.6, "c": 0.0})
    alone = falls(first, at_parting(first), end_of(first))
    assert alone == {("n", "a"): pytest.approx(0.3), ("n", "b"): pytest.approx(-0.1)}
    assert mean_change(first, at_parting(first)) == pytest.approx(-0.1)
    second = parted({"a": 0.2, "b": 0.9}, {"a": 0.8, "b": 0.5}, {"a": 0.8, "b": 0.1}, seed=1)
    most, where = greatest_fall([first, second], at_parting)
    assert where == "n, b, seed 1" and most == pytest.approx(0.4)
    most, where = greatest_fall([first], lambda run: 0)
    assert where == "n, b, seed 0" and most == pytest.approx(0.3)
    most, where = greatest_fall([first], lambda run: 0, at_parting)
    assert where == "n, b, seed 0" and most == pytest.approx(0.4)
