"""What the replicas of ``averaging.py`` do with each other's weights, step by step and in whole runs."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from node.averaging.compressed import CompressedConstants
from scripts.experiments.language_model import averaging_run
from scripts.experiments.language_model.averaging_liars import (
    HONEST_REFUSED,
    HONEST_TAKEN,
    LIAR,
    LIES_REFUSED,
    LIES_TAKEN,
    LIES_WEIGHT,
    PairsWithLiar,
)
from scripts.experiments.language_model.averaging_rules import (
    Alone,
    CompressedPairs,
    DiLoCo,
    NoLoCo,
    ReplicaRule,
)
from scripts.experiments.language_model.averaging_rules import random_pairs as pairs_of
from scripts.experiments.language_model.averaging_run import ReplicaPlan, execute, measured_steps
from scripts.experiments.language_model.language import AGAIN, LENGTH, SENTENCES, TOKENS, VOCABULARY, Language
from scripts.experiments.language_model.replicas import (
    LAST_RATE,
    WARM_UP_STEPS,
    Replicas,
    held_out_loss,
    initial,
    rate_share,
)
from swarm.averaging.norm_history import WARM_UP

BASE = {"matrix": torch.zeros(40, 25), "bias": torch.zeros(7)}


def learnt(count: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [{name: w + torch.randn(w.shape, generator=generator) for name, w in BASE.items()} for _ in range(count)]


def spread(replicas: list[dict[str, Tensor]]) -> float:
    """How far they lie from their mean."""
    stacked = torch.stack([torch.cat([tensor.reshape(-1) for tensor in each.values()]) for each in replicas])
    return float((stacked - stacked.mean(dim=0)).norm())


def rules(count: int) -> dict[str, ReplicaRule]:
    return {
        "noloco": NoLoCo(BASE, count, Random(1)),
        "compressed": CompressedPairs(BASE, count, Random(1), CompressedConstants()),
        "diloco": DiLoCo(BASE, count, Random(1)),
        "pairs with a liar": PairsWithLiar(BASE, count, Random(1), lie="large", judged=True),
    }


@given(st.integers(1, 10), st.integers(0, 100))
def test_everybody_meets_one_other(half: int, seed: int) -> None:
    pairs = pairs_of(2 * half, Random(seed))
    assert sorted(number for pair in pairs for number in pair) == list(range(2 * half))


@pytest.mark.parametrize("count", [1, 2, 8])
def test_gossip_among_a_fixed_set_gives_everybody_the_same_mean(count: int) -> None:
    offered = learnt(count)
    rule = DiLoCo(BASE, count, Random(1))
    new = rule.outer(offered)
    mean = torch.stack([each["matrix"] for each in offered]).mean(dim=0)
    assert all(each["matrix"].equal(new[0]["matrix"]) for each in new)
    torch.testing.assert_close(new[0]["matrix"], 0.7 * mean, atol=0.03, rtol=0)  # bf16 across the wire, three times
    exchanges = {1: 0, 2: 1, 8: 3}[count]
    assert exchanges * 2 * 1007 <= rule.received_bytes <= exchanges * (2 * 1007 + 200)


def test_gossip_among_six_is_refused() -> None:
    with pytest.raises(ValueError, match="6 replicas"):
        DiLoCo(BASE, 6, Random(1))


def test_noloco_draws_replicas_together() -> None:
    rule = NoLoCo(BASE, 2, Random(1))
    replicas = [dict(each) for each in rule.outer(learnt(2))]
    replicas[0] = {name: tensor + 1.0 for name, tensor in replicas[0].items()}  # one goes its own way
    before = spread(replicas)
    for _ in range(20):
        replicas = [dict(each) for each in rule.outer(replicas)]
    assert spread(replicas) < 0.05 * before


@pytest.mark.parametrize("name", sorted(rules(2)))
def test_rule_writes_to_nothing_that_it_is_given(name: str) -> None:
    offered = learnt(4)
    before = [{n: tensor.clone() for n, tensor in each.items()} for each in offered]
    rules(4)[name].outer(offered)
    assert all(o[n].equal(b[n]) for o, b in zip(offered, before, strict=True) for n in b)


def after_learning(rule: ReplicaRule, times: int) -> Tensor:
    """What eight replicas that step by noise of one length hold in the end, (8, N)."""
    generator = torch.Generator().manual_seed(2)
    replicas = [{name: tensor + 1.0 for name, tensor in BASE.items()} for _ in range(8)]
    for _ in range(times):
        learnt = [
            {n: w + 0.01 * torch.randn(w.shape, generator=generator) for n, w in each.items()} for each in replicas
        ]
        replicas = [dict(each) for each in rule.outer(learnt)]
    return torch.stack([torch.cat([tensor.reshape(-1) for tensor in each.values()]) for each in replicas])


def pairs(lie: str | None, *, judged: bool, honest_times: int = 0) -> PairsWithLiar:
    start = {name: tensor + 1.0 for name, tensor in BASE.items()}
    return PairsWithLiar(start, 8, Random(1), lie=lie, judged=judged, honest_times=honest_times)


def test_pairs_among_which_nobody_lies_or_judges_are_noloco_to_the_bit() -> None:
    start = {name: tensor + 1.0 for name, tensor in BASE.items()}
    assert after_learning(pairs(None, judged=False), 5).equal(after_learning(NoLoCo(start, 8, Random(1)), 5))


@pytest.mark.parametrize(("lie", "most_taken"), [("large", 2), ("huge", 0)])
def test_liar_whose_lies_come_after_honest_times_is_refused_and_moves_nobody(lie: str, most_taken: int) -> None:
    rule = pairs(lie, judged=True, honest_times=4 * WARM_UP)
    held = after_learning(rule, 8 * WARM_UP)
    assert rule.verdicts[LIES_TAKEN] <= most_taken
    assert rule.verdicts[LIES_WEIGHT] <= 0.25 * rule.verdicts[LIES_TAKEN]
    assert rule.verdicts[LIES_REFUSED] + rule.verdicts[LIES_TAKEN] == 4 * WARM_UP
    assert rule.verdicts[HONEST_REFUSED] < 0.1 * rule.verdicts[HONEST_TAKEN]
    honest = after_learning(pairs(None, judged=False), 8 * WARM_UP)
    undefended = after_learning(pairs(lie, judged=False, honest_times=4 * WARM_UP), 8 * WARM_UP)
    moved, moved_undefended = [float((each[1:] - honest[1:]).norm()) for each in (held, undefended)]
    assert moved_undefended > 3 * moved  # what is left: who refuses is without a step that time


@pytest.mark.parametrize(("lie", "most_taken"), [("large", 4 * WARM_UP), ("huge", 2 * WARM_UP)])
def test_liar_from_the_first_is_believed_until_enough_was_seen_and_then_hardly(lie: str, most_taken: int) -> None:
    rule = pairs(lie, judged=True)
    after_learning(rule, 60)
    assert rule.verdicts[LIES_TAKEN] + rule.verdicts[LIES_REFUSED] == 60
    assert 0 < rule.verdicts[LIES_TAKEN] <= most_taken
    assert rule.verdicts[LIES_WEIGHT] < 0.5 * rule.verdicts[LIES_TAKEN]
    assert rule.verdicts[HONEST_REFUSED] < 0.1 * rule.verdicts[HONEST_TAKEN]


def test_lie_of_ordinary_length_is_taken_like_any_other() -> None:
    rule = pairs("quiet", judged=True)
    after_learning(rule, 40)
    assert rule.verdicts[LIES_TAKEN] > 0.8 * 40
    assert rule.verdicts[LIES_WEIGHT] > 0.9 * rule.verdicts[LIES_TAKEN]


@pytest.mark.parametrize("lie", ["large", "quiet"])
def test_liar_offers_what_it_learnt_longer_or_the_wrong_way_round_and_the_others_as_it_is(lie: str) -> None:
    rule = pairs(lie, judged=False, honest_times=1)
    theta = [{name: tensor + 1.5 for name, tensor in BASE.items()}] * 8
    assert rule.shown(theta) == (theta, False)
    shown, lying = rule.shown(theta)
    assert lying
    assert shown[1:] == theta[1:]
    if lie == "quiet":
        assert all(tensor.eq(0.5).all() for tensor in shown[LIAR].values())
    else:
        longer = [float((shown[LIAR][n] - w).square().sum()) for n, w in theta[LIAR].items()]
        assert sum(longer) ** 0.5 == pytest.approx(10 * 0.5 * 1007**0.5, rel=1e-4)


def test_alone_nothing_is_averaged_and_nothing_crosses_the_wire() -> None:
    rule, offered = Alone(BASE, 3, Random(1)), learnt(3)
    assert rule.outer(offered) == offered
    assert rule.received_bytes == 0


def test_sentences_end_in_agreement_and_say_again_what_was_said() -> None:
    text = Language(4).documents(1, 400).reshape(400, SENTENCES, LENGTH)
    assert text.min() == AGAIN
    assert text.max() < VOCABULARY
    again = np.argwhere(text[:, :, 0] == AGAIN)
    assert len(again) > 300
    assert all((text[d, s, 1:] == text[d, s - 2, 1:]).all() for d, s in again)
    assert not (Language(4).documents(2, 400) == text.reshape(400, TOKENS)).all(axis=1).any()
    assert (Language(4).documents(1, 400) == text.reshape(400, TOKENS)).all()


def test_replicas_side_by_side_are_what_each_is_alone() -> None:
    weights, tokens = initial(1), torch.from_numpy(Language(1).documents(1, 3 * 2 * 4)).view(3, 2, 4, TOKENS)
    both = Replicas(weights, 2, learning_rate=1e-3)
    for step in tokens:
        both.step(step)
    for number in range(2):
        alone = Replicas(weights, 1, learning_rate=1e-3)
        for step in tokens:
            alone.step(step[number : number + 1])
        for name, tensor in alone.replica(0).items():
            torch.testing.assert_close(both.replica(number)[name], tensor, atol=1e-5, rtol=1e-4)


def test_learning_rate_rises_and_then_decays_or_stays() -> None:
    assert rate_share(WARM_UP_STEPS // 2, 600) == rate_share(WARM_UP_STEPS // 2, None) == 0.5
    assert rate_share(600, None) == 1.0
    decaying = [rate_share(step, 600) for step in range(WARM_UP_STEPS, 601)]
    assert decaying == sorted(decaying, reverse=True)
    assert decaying[0] == 1.0 and decaying[-1] == pytest.approx(LAST_RATE)


def plan(rule: str = "noloco", **changes: Any) -> ReplicaPlan:
    fields: dict[str, Any] = {
        "experiment": "e", "condition": rule, "seed": 0, "rounds": 8, "rule": rule, "settings": {}, "replicas": 4,
        "batch": 2, "learning_rate": 1e-3, "decays": False, "every": 2,
    }  # fmt: skip
    return ReplicaPlan(**{**fields, **changes})


def test_run_is_another_when_anything_of_it_differs() -> None:
    other = [plan(seed=1), plan(decays=True), plan("compressed")]
    other.append(plan("compressed", settings={"kept": 32}))
    assert len({each.key for each in (plan(), *other)}) == 5
    assert plan("compressed").key == plan("compressed", condition="compressed").key


@given(st.integers(1, 9), st.integers(20, 300))
def test_measured_is_right_after_outer_steps_the_last_among_them(every: int, rounds: int) -> None:
    steps = measured_steps(plan(every=every, rounds=rounds))
    assert all(step % every == 0 and every <= step <= rounds for step in steps)
    assert max(steps) + every > rounds


@pytest.fixture
def small_base(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("BASE_STEPS", 3), ("BASE_BATCH", 2), ("HELD_OUT", 4)):
        monkeypatch.setattr(averaging_run, name, value)


@pytest.mark.usefixtures("small_base")
def test_runs_of_one_seed_share_their_base_and_differ_by_rule(tmp_path: Path) -> None:
    plans = [plan("alone"), plan("diloco"), plan("noloco"), plan("compressed")]
    results = {each.rule: execute(each, tmp_path) for each in plans}
    assert len(list(tmp_path.iterdir())) == 1
    starts = {result.levels[0].loss for result in results.values()}
    assert len(starts) == 1
    assert results["diloco"].levels[-1].distance < 1e-6  # one φ for all
    assert 0 < results["noloco"].levels[-1].distance < results["alone"].levels[-1].distance
    assert results["alone"].received_bytes == 0
    assert 0 < 20 * results["compressed"].received_bytes < results["noloco"].received_bytes
    assert len({result.levels[-1].loss for result in results.values()}) == len(plans)
    assert execute(plans[3], tmp_path).levels == results["compressed"].levels


@pytest.mark.usefixtures("small_base")
def test_verdicts_on_what_the_liar_and_others_offered_are_kept(tmp_path: Path) -> None:
    result = execute(plan("pairs_with_liar", settings={"lie": "large", "judged": True}), tmp_path)
    taken = result.verdicts[LIES_TAKEN] + result.verdicts[HONEST_TAKEN]
    assert taken == 3 * 4  # three honest replicas, every second of eight steps; too few for anybody to refuse


def test_loss_is_that_of_the_honest_alone() -> None:
    replicas, held_out = Replicas(initial(1), 3, learning_rate=1.0), torch.from_numpy(Language(1).documents(1, 4))
    for tensor in replicas.replica(LIAR).values():
        tensor.zero_()
    honest = pairs("quiet", judged=False).honest[:2]
    assert honest == [1, 2]
    found = averaging_run.level(0, replicas, honest, held_out)
    assert found.loss == pytest.approx(held_out_loss(initial(1), held_out))
    assert found.distance == 0.0


@pytest.mark.usefixtures("small_base")
def test_run_of_replicas_whose_experiment_has_ended_ends_too(tmp_path: Path) -> None:
    with pytest.raises(InterruptedError):
        execute(plan(), tmp_path, lambda: True)
