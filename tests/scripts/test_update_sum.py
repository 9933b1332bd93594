"""Weights as a sum of sparse updates: what replicas hold that heard the same, late, or not at all."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from scripts.experiments.language_model.averaging_rules import NoLoCo
from scripts.experiments.language_model.averaging_run import AWAY_STEPS, present_next
from scripts.experiments.language_model.update_sum import UpdateSum

BASE = {"matrix": torch.zeros(40, 25), "bias": torch.zeros(7)}


def learnt_since(weights: list[dict[str, Tensor]], seed: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [{name: w + torch.randn(w.shape, generator=generator) for name, w in each.items()} for each in weights]


def steps_of(rule: UpdateSum, count: int, *, learning: int, quiet: int = 0) -> list[dict[str, Tensor]]:
    """Returns the weights after outer steps between which everybody learns, and others between which nobody does."""
    weights: list[dict[str, Tensor]] = [dict(BASE) for _ in range(count)]
    for step in range(learning + quiet):
        offered = learnt_since(weights, step) if step < learning else weights
        weights = [dict(each) for each in rule.outer(offered)]
    return weights


def apart(weights: list[dict[str, Tensor]]) -> float:
    return max(float((each[name] - weights[0][name]).abs().max()) for each in weights for name in each)


def of(count: int, **settings: Any) -> UpdateSum:
    return UpdateSum(BASE, count, Random(1), **{"pace": 0.7, "kept": 4096, **settings})


def test_replicas_that_heard_the_same_updates_hold_the_same_weights() -> None:
    weights = steps_of(of(5), 5, learning=6)
    assert apart(weights) < 1e-4
    assert float(weights[0]["matrix"].norm()) > 1


def test_late_and_lost_updates_change_when_a_replica_holds_the_sum_and_not_the_sum() -> None:
    # everything is kept, so that after the last learning nothing is left to send but rounding
    late = steps_of(of(4, latest=3, lost=0.3), 4, learning=5, quiet=40)
    assert apart(late) < 0.02
    assert apart(steps_of(of(4, latest=3, lost=0.3), 4, learning=5)) > 0.2


def test_sender_scales_by_those_alive_and_never_lengthens() -> None:
    moved = {}
    for count in (1, 4, 16):
        ones = {name: torch.ones_like(w) for name, w in BASE.items()}
        new = of(count).outer([ones, *[dict(BASE)] * (count - 1)])
        moved[count] = float(new[-1]["matrix"].mean())
    assert moved == pytest.approx({1: 0.7, 4: 0.35, 16: 0.175}, rel=1e-3)
    assert float(of(1, pace=3.0).outer([{n: torch.ones_like(w) for n, w in BASE.items()}])[0]["bias"].max()) <= 1.001


def test_what_was_not_sent_is_undone_until_it_is_sent() -> None:
    undone = of(2, pace=9.0, kept=64).outer(learnt_since([dict(BASE), dict(BASE)], 1))
    assert int((undone[0]["matrix"] == 0).sum()) > 900  # but for the few that either sent


def test_replica_that_was_away_hears_what_it_missed() -> None:
    rule = of(3)
    weights: list[dict[str, Tensor]] = [dict(BASE) for _ in range(3)]
    for step in range(6):
        rule.present[2] = step not in (1, 2, 3)
        before = weights[2]
        offered = learnt_since(weights, step)
        offered[2] = offered[2] if rule.present[2] else before
        weights = [dict(each) for each in rule.outer(offered)]
        if not rule.present[2]:
            assert all(torch.equal(weights[2][name], before[name]) for name in before)
    assert apart(weights) < 1e-4


def test_noloco_pairs_those_present_and_one_that_returns_begins_from_anothers_weights() -> None:
    rule = NoLoCo(BASE, 4, Random(1))
    offered = learnt_since([dict(BASE)] * 4, 1)
    rule.present = [True, True, True, False]
    new = rule.outer(offered)
    assert new[3] is offered[3]
    alone = [number for number in range(3) if new[number] is offered[number]]
    assert len(alone) == 1, "one of three has no partner"
    rule.present = [True] * 4
    far = [*new[:3], {name: w + 1e3 for name, w in BASE.items()}]
    assert float(rule.outer(far)[3]["matrix"].abs().max()) < 1e2, "the weights that it came back with are not used"


def test_share_of_replicas_that_are_away_is_as_asked_for() -> None:
    random, present, absent = Random(3), [True] * 8, 0
    for _ in range(4000):
        present = present_next(present, 0.3, random)
        assert sum(present) >= 2
        absent += present.count(False)
    assert absent / (8 * 4000) == pytest.approx(0.3, abs=0.03)
    assert AWAY_STEPS > 1
