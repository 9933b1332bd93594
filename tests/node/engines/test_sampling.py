from __future__ import annotations

import numpy as np
import pytest
import torch

from node.engines.sampling import draw


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_the_softmax_says(temperature: float) -> None:
    logits = torch.tensor([1.0, -2.0, 0.3, 2.0, -0.5, -torch.inf])
    draws = 40_000
    tokens, logps = draw(logits.expand(draws, -1), temperature, seeded())
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
        tokens, logps = draw(certain, 1.0, seeded())
        assert set(tokens.tolist()) == {column}
        assert logps.abs().max() == 0
        certain[:, column] = -torch.inf


def test_greedy_takes_the_likeliest_token_with_its_log_probability_at_temperature_one() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 5.0, 6.0]])
    tokens, logps = draw(logits, 0.0, seeded())
    assert tokens.tolist() == [1, 2]
    torch.testing.assert_close(logps, torch.log_softmax(logits, -1)[[0, 1], [1, 2]])


def test_half_precision_logits_give_float32_log_probabilities() -> None:
    _, logps = draw(torch.randn((4, 9), generator=seeded()).bfloat16(), 1.0, seeded())
    assert logps.dtype == torch.float32
