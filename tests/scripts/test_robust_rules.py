"""CenteredClip keeps an honest mean, and what an outlier can do to it is bounded."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scripts.experiments.language_model.robust import centered_clip


def test_without_outliers_the_centre_is_near_the_mean() -> None:
    vectors = torch.randn(16, 200, generator=torch.Generator().manual_seed(1)) + 3.0
    centre = centered_clip(vectors)
    assert float((centre - vectors.mean(0)).norm()) < 0.15 * float(vectors.mean(0).norm()) / math.sqrt(16)


@given(seed=st.integers(0, 1000), size=st.floats(10.0, 1e8), honest=st.integers(3, 9))
def test_however_large_one_outlier_is_the_centre_stays_with_the_others(seed: int, size: float, honest: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(honest, 50, generator=generator)
    away = torch.randn(1, 50, generator=generator)
    centre = centered_clip(torch.cat([vectors, size * away / away.norm()]))
    spread = float((vectors - vectors.mean(0)).norm(dim=1).max())
    assert float((centre - vectors.mean(0)).norm()) < 1.5 * spread


def test_equal_vectors_are_their_own_centre() -> None:
    assert centered_clip(torch.ones(4, 3)).tolist() == [1.0, 1.0, 1.0]


def test_two_are_too_few() -> None:
    with pytest.raises(ValueError, match="fewer than 3"):
        centered_clip(torch.ones(2, 3))
