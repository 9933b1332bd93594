"""Off-policy corrections, the floor under them, and how they meet the loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from node.configuration import CorrectionName, LossName, ObjectiveSection
from node.configuration.sections import UNWEIGHTED_CORRECTIONS
from node.learner.objective.alignment import Alignment, text_alignment
from node.learner.objective.batch import SELF, RaggedSpans, TrainingCompletion
from node.learner.objective.loss import (
    LOSSES,
    Anchors,
    BatchTotals,
    clipped_gain,
    objective_loss,
)
from node.learner.objective.weights import CORRECTIONS, Weights, span_weights
from tests.node.learner.objective_sections import objective_section


def section(**keys: Any) -> ObjectiveSection:
    return objective_section(**({"ratio_floor": 0.0} | keys))


def completion(
    behaviour: Sequence[float], advantage: float = 1.0, *, peer: str = SELF, as_text: bool = False
) -> TrainingCompletion:
    length = len(behaviour)
    alignment = Alignment(np.arange(length), np.array(behaviour, dtype=np.float32), 0)
    if as_text:
        alignment = text_alignment(length)
    ids = np.zeros(length, np.int64)
    return TrainingCompletion(ids, alignment, advantage, peer, as_text=as_text)


def test_every_loss_and_correction_that_can_be_configured_has_its_rule() -> None:
    assert set(CORRECTIONS) == set(get_args(CorrectionName))
    assert set(LOSSES) == set(get_args(LossName))


def test_the_configuration_knows_which_corrections_have_no_weights() -> None:
    assert {name for name, each in CORRECTIONS.items() if not each.weighted} == UNWEIGHTED_CORRECTIONS


def weights_of(
    ratios: Sequence[Sequence[float]], advantages: Sequence[float], peer: str = SELF, **keys: Any
) -> Weights:
    """Weights for completions whose spans have these ratios, divergence 0."""
    completions = [completion([0.0] * len(row), a, peer=peer) for row, a in zip(ratios, advantages, strict=True)]
    spans = RaggedSpans.of(completions)
    log_ratios = torch.tensor([math.log(r) for row in ratios for r in row])
    return span_weights(log_ratios, torch.zeros(len(advantages)), spans, section(**keys))


@pytest.mark.parametrize(
    ("correction", "expected", "limited"),
    [
        ("none", [1, 1, 1, 1], 0),
        ("ppo", [1, 1, 1, 1], 0),
        ("byte_aligned", [0.1, 0.6, 2, 2], 2),
        ("f_tis", [0.1, 0.6, 2, 2], 2),
        ("token_tis", [0.1, 0.6, 2, 2], 2),
        ("sequence_tis", [0.06, 0.06, 2, 2], 2),
    ],
)
def test_each_correction_by_hand(correction: str, expected: list[float], limited: int) -> None:
    found = weights_of([[0.1, 0.6], [3.0, 9.0]], [1.0, -1.0], correction=correction)
    torch.testing.assert_close(found.values, torch.tensor(expected, dtype=torch.float32))
    assert int(found.limited.sum()) == limited
    assert found.kept.all()


def test_sequence_mask_drops_bad_completions_far_away_by_their_mean_distance() -> None:
    far, near = math.exp(-0.6), math.exp(-0.4)
    found = weights_of([[far, far], [far, far], [far, near]], [-1.0, 1.0, -1.0], correction="sequence_mask")
    assert found.values.tolist() == [0, 0, 1, 1, 1, 1]
    assert found.kept.tolist() == [False, True, True]


def test_hacpo_weighs_foreign_completions_by_their_squared_mean_ratio_between_its_bounds() -> None:
    """Mean ratios s = √(.9·.9) = .9, √(1·.81) = .9, √(.6·.6) = .6 < .8, √(2·1) > 1: s² inside, nothing outside."""
    ratios = [[0.9, 0.9], [1.0, 0.81], [0.6, 0.6], [2.0, 1.0]]
    found = weights_of(ratios, [1.0, -1.0, 1.0, -1.0], peer="p", correction="hacpo")
    torch.testing.assert_close(found.values, torch.tensor([0.81, 0.81, 0.81, 0.81, 0, 0, 0, 0]))
    assert found.kept.tolist() == [True, True, False, False]
    assert weights_of(ratios, [1.0] * 4, correction="hacpo").values.tolist() == [1.0] * 8  # own


def test_hacpo_agrees_with_the_gradient_of_its_published_objective() -> None:
    """Of clamp(s, .8, 1) · sg(clamp(s, .8, 1))^α · κ · A, mean over completions, s from mean log-probabilities."""
    behaviour = [[-1.0, -0.5], [-0.2, -0.4, -0.3], [-0.1], [-2.0, -2.0]]
    advantages = [1.3, -0.7, 2.0, 0.4]  # κ is in them
    values = torch.tensor([-1.1, -0.6, -0.3, -0.35, -0.45, -0.9, -1.0, -1.0])
    published = values.clone().requires_grad_()
    rows = torch.split(published, [2, 3, 1, 2])
    s = torch.stack([(row.mean() - torch.tensor(mu).mean()).exp() for row, mu in zip(rows, behaviour, strict=True)])
    s = s.clamp(0.8, 1.0)
    (-(s * s.detach() * torch.tensor(advantages)).mean()).backward()
    ours = values.clone().requires_grad_()
    batch = RaggedSpans.of([completion(mu, a, peer="p") for mu, a in zip(behaviour, advantages, strict=True)])
    keys = section(correction="hacpo", loss="gspo", clip=3e-4, clip_high=4e-4)
    objective_loss(ours, torch.zeros(8), batch, keys, BatchTotals(8, 4, 3))[0].backward()
    assert published.grad is not None and published.grad.count_nonzero() == 5  # the last two are out of bounds
    torch.testing.assert_close(ours.grad, published.grad)


@pytest.mark.parametrize("correction", ["byte_aligned", "f_tis", "token_tis"])
def test_floor_raises_what_is_rare_in_good_foreign_completions_alone(correction: str) -> None:
    keys: dict[str, Any] = {"correction": correction, "ratio_floor": 0.7}
    rare = [[1e-5, 0.6, 1.5]]
    raised = weights_of(rare, [1.0], peer="p", **keys)
    torch.testing.assert_close(raised.values, torch.tensor([0.7, 0.7, 1.5]))
    assert raised.floored.tolist() == [True, True, False]
    assert not weights_of(rare, [1.0], **keys).floored.any()
    assert not weights_of(rare, [-1.0], peer="p", **keys).floored.any()


def test_floor_under_whole_completions_raises_every_span() -> None:
    found = weights_of([[3.0, 0.01], [1.2, 1.5]], [1.0, 1.0], peer="p", correction="sequence_tis", ratio_floor=0.3)
    torch.testing.assert_close(found.values, torch.tensor([0.3, 0.3, 1.8, 1.8]))


@pytest.mark.parametrize("correction", ["none", "ppo", "sequence_mask"])
def test_without_a_weight_there_is_nothing_to_raise(correction: str) -> None:
    found = weights_of([[0.5]], [1.0], peer="p", correction=correction, ratio_floor=3.0)
    assert found.values.tolist() == [1.0]
    assert not found.floored.any()


def test_a_completion_taken_as_text_weighs_one_and_is_left_out_of_the_divergence() -> None:
    batch = [completion([-1.0, -1.0], peer="p", as_text=True), completion([-2.0], -1.0, peer="p")]
    logps = torch.tensor([-9.0, -9.0, -1.0], requires_grad=True)
    loss, report = objective_loss(
        logps, torch.zeros(3), RaggedSpans.of(batch), section(filter_gamma=1e3), BatchTotals(1, 2, 1)
    )
    loss.backward()
    torch.testing.assert_close(logps.grad, torch.tensor([-1.0, -1.0, 2.0]))
    assert report.text_completions == 1
    assert report.divergence["p"][1] == 1
    assert report.divergence_by_peer()["p"] == pytest.approx(math.e - 2, rel=1e-5)


@pytest.mark.parametrize("correction", ["byte_aligned", "f_tis"])
def test_filter_of_far_bad_completions_belongs_to_f_tis(correction: str) -> None:
    batch = RaggedSpans.of([completion([-9.0], -1.0, peer="p")])
    args = torch.tensor([-0.1]), torch.zeros(1), batch
    _, report = objective_loss(*args, section(correction=correction, filter_gamma=1.0), BatchTotals(1, 1, 1))
    assert report.filter_share() == 1.0
    _, report = objective_loss(*args, section(correction="token_tis", filter_gamma=1.0), BatchTotals(1, 1, 1))
    assert report.filter_share() == 0.0


def test_weight_is_of_the_proximal_policy_and_the_clip_of_the_step_from_it() -> None:
    """(π_prox/μ) · min(uA, clip(u)A), u = π_θ/π_prox."""
    proximal, behaviour = torch.tensor([-1.0, -1.0]), [-1.2, -0.8]
    logps = torch.tensor([-0.9, -0.5], requires_grad=True)  # u = e^.1 inside, e^.5 above the clip
    batch = RaggedSpans.of([completion(behaviour)])
    keys = section(correction="token_tis", steps=2)
    loss, report = objective_loss(logps, torch.zeros(2), batch, keys, BatchTotals(1, 1, 1), Anchors(proximal))
    loss.backward()
    torch.testing.assert_close(logps.grad, torch.tensor([-math.exp(0.2) * math.exp(0.1), 0.0]))
    assert loss.item() == pytest.approx(-math.exp(0.2) * math.exp(0.1) - math.exp(-0.2) * 1.2, rel=1e-5)
    assert report.clipped_token_share() == 0.5


def test_two_sided_clipping_bounds_a_bad_token_that_has_become_likely() -> None:
    ratios, bad = torch.tensor([50.0]), torch.tensor([-1.0])
    assert clipped_gain(ratios, bad, 0.2, 0.2).tolist() == [-50]
    assert clipped_gain(ratios, bad, 0.2, 0.2, 4.0).tolist() == [-4]


@pytest.mark.parametrize("loss", ["dapo", "gspo", "cispo"])
def test_a_ratio_beyond_all_numbers_stays_finite(loss: str) -> None:
    logps = torch.tensor([-0.1, -0.1], requires_grad=True)
    batch = RaggedSpans.of([completion([-400.0], -1.0, peer="p"), completion([-400.0], 0.0, peer="p")])
    keys = section(loss=loss, correction="ppo", clip_high=5.0 if loss == "cispo" else 0.0)
    value, _ = objective_loss(logps, torch.zeros(2), batch, keys, BatchTotals(2, 2, 1))
    value.backward()
    assert torch.isfinite(value) and logps.grad is not None and torch.isfinite(logps.grad).all()


def test_completion_without_advantage_adds_to_the_kl_term_alone() -> None:
    own, foreign = completion([-1.0, -1.0], 0.0), completion([-1.0], 1.0, peer="p")
    logps = torch.tensor([-1.0, -2.0, -1.0], requires_grad=True)
    reference = torch.tensor([-1.5, -2.0, -7.0])
    keys = section(kl_weight=0.1)
    batch = RaggedSpans.of([own, foreign])
    loss, report = objective_loss(
        logps, torch.ones(3), batch, keys, BatchTotals(10, 2, 1), Anchors(reference=reference)
    )
    loss.backward()
    kl = math.exp(-0.5) + 0.5 - 1
    assert loss.item() == pytest.approx((0.1 * kl - 1) / 10, rel=1e-5)
    torch.testing.assert_close(logps.grad, torch.tensor([0.1 * (1 - math.exp(-0.5)), 0.0, -1.0]) / 10)
    assert (report.tokens, report.completions, report.kl_tokens) == (1, 1, 2)
    assert report.mean_kl() == pytest.approx(kl / 2, rel=1e-5)
    assert report.mean_entropy() == 1.0


@given(st.sampled_from(get_args(CorrectionName)), st.integers(0, 10_000), st.sampled_from([0.0, 0.3, 1.0]))
def test_loss_gradient_and_report_are_finite_for_policies_far_apart(correction: str, seed: int, floor: float) -> None:
    rng = np.random.default_rng(seed)
    batch = [
        completion(
            (-rng.exponential(rng.choice([0.1, 3.0, 60.0]), rng.integers(1, 5))).tolist(),
            float(rng.normal()) * bool(rng.integers(2)),
            peer=str(rng.choice([SELF, "p", "q"])),
        )
        for _ in range(rng.integers(1, 6))
    ]
    length = sum(len(c.token_ids) for c in batch)
    logps = torch.tensor(-rng.exponential(rng.choice([0.1, 3.0, 60.0]), length), dtype=torch.float32).requires_grad_()
    keys = section(correction=correction, ratio_floor=floor)
    spans = RaggedSpans.of(batch)
    loss, report = objective_loss(logps, torch.zeros(length), spans, keys, BatchTotals(length, len(batch), 9))
    (gradient,) = torch.autograd.grad(loss, logps)
    assert torch.isfinite(loss) and torch.isfinite(gradient).all()
    silent = torch.tensor([c.advantage == 0 for c in batch])[spans.sequence_of_token]
    assert not gradient[silent].any()
    for share in (report.effective_sample_share(), report.filter_share()):
        assert share is None or 0 <= share <= 1 + 1e-9
