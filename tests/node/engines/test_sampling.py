from __future__ import annotations

import numpy as np
import pytest
import torch

from node.engines.draws import uniforms
from node.engines.sampling import draw


def uniform(count: int) -> torch.Tensor:
    return torch.from_numpy(uniforms(0, np.arange(count), np.zeros(count, np.int64), 1)[0])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_the_softmax_says(temperature: float) -> None:
    logits = torch.tensor([1.0, -2.0, 0.3, 2.0, -0.5, -torch.inf])
    draws = 40_000
    tokens, logps = draw(logits.expand(draws, -1), temperature, uniform(draws))
    expected = torch.softmax(logits / temperature, -1).numpy()
    counts = np.bincount(tokens.numpy(), minlength=6)
    assert counts[5] == 0
    chi_squared = ((counts[:5] - draws * expected[:5]) ** 2 / (draws * expected[:5])).sum()
    assert chi_squared < 18.5  # 4 degrees of freedom: p = 0.001
    np.testing.assert_allclose(logps.numpy(), np.log(expected[tokens.numpy()]), atol=1e-5)


def test_token_is_drawn_even_at_the_very_ends_of_the_distribution() -> None:
    certain = torch.full((1000, 4), -torch.inf)
    for column in (0, 3):
        certain[:, column] = 0.0
        tokens, logps = draw(certain, 1.0, uniform(1000))
        assert set(tokens.tolist()) == {column}
        assert logps.abs().max() == 0
        certain[:, column] = -torch.inf


def test_greedy_takes_the_likeliest_token_with_its_log_probability_at_temperature_one() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 5.0, 6.0]])
    tokens, logps = draw(logits, 0.0, uniform(2))
    assert tokens.tolist() == [1, 2]
    torch.testing.assert_close(logps, torch.log_softmax(logits, -1)[[0, 1], [1, 2]])


def test_half_precision_logits_give_float32_log_probabilities() -> None:
    _, logps = draw(torch.randn((4, 9)).bfloat16(), 1.0, uniform(4))
    assert logps.dtype == torch.float32


@pytest.mark.parametrize("varying", ["seed", "completion", "position"])
def test_numbers_that_differ_in_one_key_are_uniform_and_independent_of_their_neighbours(varying: str) -> None:
    count = 40_000
    zeros = np.zeros(1, np.int64)
    if varying == "seed":
        drawn = np.concatenate([uniforms(seed, zeros, zeros, 1)[0] for seed in range(count)])
    elif varying == "completion":
        drawn = uniforms(7, np.arange(count), np.zeros(count, np.int64), 1)[0]
    else:
        drawn = uniforms(7, zeros, zeros, count)[:, 0]
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = np.bincount((drawn * 16).astype(int), minlength=16)
    assert ((counts - count / 16) ** 2 / (count / 16)).sum() < 37.7  # 15 degrees of freedom: p = 0.001
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 3.3 / count**0.5  # p = 0.001


def test_number_of_a_token_does_not_depend_on_how_many_are_prepared_nor_on_who_else_is_in_the_batch() -> None:
    together = uniforms(3, np.array([5, 9]), np.array([0, 2]), 4)
    assert uniforms(3, np.array([9]), np.array([4]), 1)[0, 0] == together[2, 1]
    assert len(np.unique(together)) == 8
    assert not np.isin(uniforms(4, np.array([5, 9]), np.array([0, 2]), 4), together).any()
