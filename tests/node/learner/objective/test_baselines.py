"""VCPO's baseline of least variance, which needs the policy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from node.kernels.linear_logp import linear_logps
from node.learner.objective.baselines import (
    VOCABULARY_BLOCK,
    least_variance_baseline,
    squared_head_gradient,
)


@pytest.mark.parametrize("vocabulary", [7, VOCABULARY_BLOCK + 3])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("biased", [True, False])
def test_head_gradient_in_closed_form_is_that_of_autograd(vocabulary: int, temperature: float, biased: bool) -> None:
    seeded = torch.Generator().manual_seed(0)
    hidden = torch.randn(5, 6, generator=seeded, dtype=torch.float64)
    weight = torch.randn(vocabulary, 6, generator=seeded, dtype=torch.float64).requires_grad_()
    bias = torch.randn(vocabulary, generator=seeded, dtype=torch.float64).requires_grad_() if biased else None
    targets, weights = torch.tensor([0, 3, vocabulary - 1, 3, 2]), torch.tensor([1.0, 0.2, 2.0, 0.0, 1.5]).double()
    logps, _ = linear_logps(hidden, weight, targets, bias, temperature=temperature)
    wanted = [weight] if bias is None else [weight, bias]
    gradients = torch.autograd.grad((weights * logps).sum(), wanted)
    expected = sum(float(g.square().sum()) for g in gradients)
    with torch.no_grad():
        found = squared_head_gradient(hidden, weight, targets, weights, bias, temperature=temperature)
    assert found == pytest.approx(expected, rel=1e-9)


def test_equal_gradients_make_the_mean_and_none_at_all_does_too() -> None:
    rewards, counts = np.array([0.0, 1.0, 1.0]), np.array([2, 1, 1])
    assert least_variance_baseline(rewards, np.ones(3), counts) == 0.5
    assert least_variance_baseline(rewards, np.zeros(3), counts) == 0.5
    assert least_variance_baseline(rewards, np.array([1.0, 4.0, 0.0]), counts) == pytest.approx(4 / 6)


ARMS = 6


def bandit() -> tuple[torch.Tensor, NDArray[np.float64], NDArray[np.float64]]:
    """Logits of the learner, probabilities of another sampler, rewards."""
    rng = np.random.default_rng(3)
    learner = torch.tensor(rng.normal(size=(ARMS, 1)) * 1.5)
    other = np.exp(rng.normal(size=ARMS) * 1.5)
    return learner, other / other.sum(), rng.random(ARMS)


def arm_gradients(learner: torch.Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """log π (ARMS,) and ∇ log π of each arm (ARMS, ARMS)."""
    logps = learner[:, 0].log_softmax(0).numpy()
    return logps, np.eye(ARMS) - np.exp(logps)


def squared_norms(learner: torch.Tensor, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """As the step computes them: each arm is a completion of one token, behind a head of width 1."""
    one = torch.ones(1, 1, dtype=torch.float64)
    return np.array(
        [squared_head_gradient(one, learner, torch.tensor([a]), torch.tensor([w])) for a, w in enumerate(weights)]
    )


def total_variance(gradients: NDArray[np.float64], probabilities: NDArray[np.float64]) -> float:
    mean = (probabilities[:, None] * gradients).sum(0)
    return float((probabilities * (gradients**2).sum(1)).sum() - (mean**2).sum())


def test_least_variance_baseline_has_less_variance_than_the_mean_on_a_bandit_and_no_baseline_has_less() -> None:
    """Exact: every arm is summed over with its probability under the sampler."""
    learner, sampler, rewards = bandit()
    logps, gradients = arm_gradients(learner)
    weights = np.exp(logps) / sampler

    def variance(baseline: float) -> float:
        return total_variance((weights * (rewards - baseline))[:, None] * gradients, sampler)

    counts = np.rint(sampler * 1e9).astype(np.int64)
    best = least_variance_baseline(rewards, squared_norms(learner, weights), counts)
    mean = float((sampler * rewards).sum())
    assert variance(best) < 0.98 * variance(mean)
    around = [variance(best + step) for step in (-0.1, -0.01, 0.01, 0.1)]
    assert variance(best) < min(around)


def test_least_variance_baseline_of_sampled_groups_beats_their_mean() -> None:
    """As it is used: each group of 16 takes its baseline from its own samples."""
    learner, sampler, rewards = bandit()
    logps, gradients = arm_gradients(learner)
    weights = np.exp(logps) / sampler
    norms = squared_norms(learner, weights)
    rng = np.random.default_rng(0)
    by_rule: dict[str, list[NDArray[np.float64]]] = {"mean": [], "least": []}
    for _ in range(3000):
        counts = np.bincount(rng.choice(ARMS, 16, p=sampler), minlength=ARMS)
        seen = counts > 0
        baselines = {
            "mean": float((counts * rewards).sum() / 16),
            "least": least_variance_baseline(rewards[seen], norms[seen], counts[seen]),
        }
        for rule, baseline in baselines.items():
            each = (counts * weights * (rewards - baseline))[:, None] * gradients
            by_rule[rule].append(each.sum(0) / 16)
    spread = {rule: float(np.var(np.stack(found), axis=0).sum()) for rule, found in by_rule.items()}
    assert spread["least"] < spread["mean"]
    assert math.isfinite(spread["least"]) and spread["least"] > 0
