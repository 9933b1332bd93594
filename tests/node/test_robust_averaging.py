"""Robust rules keep an honest mean, and what an outlier can do to it is bounded."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from node.averaging import robust
from node.averaging.robust import NormHistory


def history(*norms: float) -> NormHistory:
    seen = NormHistory()
    for norm in norms:
        seen = seen.after(norm)
    return seen


def steady(mean: float = 10.0) -> NormHistory:
    return history(*(mean * (1.0 + 0.05 * (-1) ** i) for i in range(40)))


def test_the_past_of_norms_is_their_plain_mean_and_variance_at_first() -> None:
    norms = torch.tensor([9.0, 10.0, 12.0, 11.0, 10.5])
    seen = history(*norms.tolist())
    assert seen.mean == pytest.approx(float(norms.mean()))
    assert seen.variance == pytest.approx(float(norms.var(correction=0)))


def test_an_outlier_gets_no_weight_and_does_not_raise_the_bar_for_the_next() -> None:
    past = steady()
    assert robust.edit_weights([10.0, 10.0, 30.0], [past] * 3) == pytest.approx([0.5, 0.5, 0.0])
    assert past.after(30.0) == past
    assert past.after(10.2) != past


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_norm_that_is_no_number_gets_no_weight_even_at_first(norm: float) -> None:
    assert robust.edit_weights([norm, 1.0], [NormHistory()] * 2) == [0.0, 1.0]
    assert NormHistory().after(norm) == NormHistory()
    assert robust.edit_weights([norm], [NormHistory()]) == [0.0]


def test_the_others_share_by_softmax_of_minus_their_norms() -> None:
    expected = torch.softmax(-torch.tensor([1.0, 2.0, 1.5], dtype=torch.float64), 0)
    assert robust.edit_weights([1.0, 2.0, 1.5], [NormHistory()] * 3) == pytest.approx(expected.tolist())
    assert robust.edit_weights([1e6, 1e6 + 1.0], [NormHistory()] * 2) == pytest.approx([0.73106, 0.26894], abs=1e-4)


def test_a_past_without_any_spread_does_not_refuse_a_norm_a_hair_larger() -> None:
    assert history(*[5.0] * 20).score(5.0 + 1e-6) < robust.Z_MOST


def test_the_mean_is_weighted_clipped_and_does_not_read_what_has_no_weight() -> None:
    good, spoilt = torch.tensor([3.0, 4.0]), torch.tensor([math.nan, math.inf])
    assert robust.edit_mean([good, spoilt], [1.0, 0.0], most_norm=10.0).tolist() == [3.0, 4.0]
    assert robust.edit_mean([good, spoilt], [1.0, 0.0], most_norm=1.0).tolist() == pytest.approx([0.6, 0.8])
    assert robust.edit_mean([spoilt], [0.0], most_norm=1.0).tolist() == [0.0, 0.0]


def test_without_outliers_the_centre_is_near_the_mean() -> None:
    vectors = torch.randn(16, 200, generator=torch.Generator().manual_seed(1)) + 3.0
    centre = robust.centered_clip(vectors)
    assert float((centre - vectors.mean(0)).norm()) < 0.15 * float(vectors.mean(0).norm()) / math.sqrt(16)


@settings(deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 1000), size=st.floats(10.0, 1e8), honest=st.integers(3, 9))
def test_however_large_one_outlier_is_the_centre_stays_with_the_others(seed: int, size: float, honest: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(honest, 50, generator=generator)
    away = torch.randn(1, 50, generator=generator)
    centre = robust.centered_clip(torch.cat([vectors, size * away / away.norm()]))
    spread = float((vectors - vectors.mean(0)).norm(dim=1).max())
    assert float((centre - vectors.mean(0)).norm()) < 1.5 * spread


def test_a_contributor_of_no_weight_pulls_nobody_and_equal_vectors_are_their_own_centre() -> None:
    vectors = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [9.0, 9.0]])
    free = robust.centered_clip(vectors, torch.tensor([1.0, 1.0, 1.0, 0.0]))
    assert float(free.norm()) < 1.0
    assert robust.centered_clip(torch.ones(4, 3)).tolist() == [1.0, 1.0, 1.0]


def test_two_are_too_few() -> None:
    with pytest.raises(ValueError, match="fewer than 3"):
        robust.centered_clip(torch.ones(2, 3))
