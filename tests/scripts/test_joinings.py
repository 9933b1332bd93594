"""What false alarms are counted with: a joining drawn again accuses where success fell, and a walk is measured."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.attacks.joinings import LEAST_DAYS, Joining, accusations_in_days, main, measured, walk_of, wilson_high
from scripts.attacks.poisoning.meeting import TOGETHER, Seen

ALONE = 40
TASKS = ("add", "sort")


def seen(after: float) -> Seen:
    """A learner whose success is .6 alone, and ``after`` from the joining on."""
    draws = np.random.default_rng(3)
    rounds = ALONE + TOGETHER
    success = [0.6 if number < ALONE else after for number in range(rounds)]
    groups = [{task: list(draws.binomial(4, p, 16) / 4) for task in TASKS} for p in success]
    shares = [{} if number < ALONE else {"robin": 1.0} for number in range(rounds)]
    return Seen("wren", groups, shares, [0.0] * rounds, [])


@pytest.mark.parametrize(("after", "accused"), [(0.6, False), (0.1, True)])
def test_a_joining_drawn_again_accuses_where_success_fell_with_it(after: float, accused: bool) -> None:
    joining = Joining(seen(after), ALONE + 1)
    assert joining.accuses(None) is accused
    assert {joining.accuses(np.random.default_rng(seed)) for seed in range(5)} == {accused}


def test_a_walk_is_measured_beside_chance() -> None:
    draws = np.random.default_rng(5)
    walks = np.cumsum(draws.normal(0.0, 0.01, (200, 200)), axis=1)
    chance = draws.normal(0.0, 0.05, walks.shape)
    assert walk_of((walks + chance).tolist()) == pytest.approx(0.01, rel=0.15)
    assert walk_of(chance.tolist()) < 0.004


def test_level_and_scatter_of_prompts_are_measured() -> None:
    found = measured([seen(0.6)])
    assert found.level == pytest.approx(0.6, abs=0.05) and found.node.tasks == len(TASKS)
    assert found.node.kappa > 10  # prompts of a task are alike here


def test_no_accusation_in_few_leaves_the_interval_wide() -> None:
    assert wilson_high(0, 200) == pytest.approx(0.0188, abs=1e-3)
    assert wilson_high(0, 20) > 0.1


@pytest.mark.parametrize("days", ["0", ".005", "-1", "nan", "ten"])
def test_days_that_hold_no_round_are_refused_before_anything_is_recorded(
    days: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["joinings", "--finished", "--days", days])
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == 2
    assert str(LEAST_DAYS) in capsys.readouterr().err


def test_the_least_days_hold_a_round_of_every_run() -> None:
    assert accusations_in_days(measured([seen(0.6)]), LEAST_DAYS, seed=1)[0] >= 0
