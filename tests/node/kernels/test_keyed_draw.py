"""Tokens drawn under keys: the distribution, the log-probabilities, and that a row is its own.

Triton's kernels run in its interpreter.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from node.engines.draws import Draws
from node.kernels.drawing import keyed_draw as definition
from node.kernels.drawing.draw_keys import BLOCK, DrawKeys
from node.kernels.drawing.keyed_draw import keyed_draw, logp_bound, philox_words, torch_keyed_draw

CPU = torch.device("cpu")
LOW_TO_HIGH = torch.tensor([1.0, -2.0, 0.3, 2.0, -0.5, -torch.inf])


def keys_of(rows: int, seed: int = 0, first: int = 0, step: int = 0) -> DrawKeys:
    completions = torch.arange(first, first + rows)
    return DrawKeys(torch.tensor([seed]), completions, torch.full_like(completions, step))


def logits_of(rows: int, vocabulary: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    seeded = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(rows, vocabulary, generator=seeded)).to(dtype)


def chi_squared(tokens: Tensor, probabilities: Tensor) -> float:
    counts = np.bincount(tokens.numpy(), minlength=len(probabilities))
    expected = len(tokens) * probabilities.double().numpy()
    assert (counts[expected == 0] == 0).all()
    return float(((counts - expected)[expected > 0] ** 2 / expected[expected > 0]).sum())


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D)),
        ((0xFFFFFFFF,) * 4, -1, (0x408F276D, 0x41C83B0E)),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), 0x299F31D0A4093822, (0xD16CFE09, 0x94FDCCEB)),
    ],
)
def test_random_words_are_those_that_the_authors_publish(
    counter: tuple[int, ...], key: int, expected: tuple[int, int]
) -> None:
    completion = counter[2] | (counter[3] << 32)
    signed = completion - (1 << 64) if completion >= 1 << 63 else completion
    keys = DrawKeys(torch.tensor([key]), torch.tensor([signed]), torch.tensor([counter[1]]))
    low, high = philox_words(torch.tensor([[counter[0]]]), keys)
    assert (int(low), int(high)) == expected


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_the_softmax_says(temperature: float) -> None:
    tokens, _ = torch_keyed_draw(LOW_TO_HIGH.expand(4000, -1), temperature, keys_of(4000))
    assert chi_squared(tokens, torch.softmax(LOW_TO_HIGH / temperature, -1)) < 18.5  # 4 degrees of freedom: p = 0.001


@pytest.mark.usefixtures("by_triton")
def test_kernels_draw_tokens_as_often_as_the_softmax_says() -> None:
    logits = torch.tensor([0.0, 1.0, -0.5, 0.5, 0.0])
    tokens, _ = keyed_draw(logits.expand(100, -1), 1.0, keys_of(100))
    assert chi_squared(tokens, torch.softmax(logits, -1)) < 18.5


def test_blocks_are_drawn_as_often_as_their_tokens_together() -> None:
    logits = torch.full((1, 2 * BLOCK + 1), -9.0)
    logits[0, [3, BLOCK + 7, 2 * BLOCK]] = torch.tensor([1.0, 0.0, 2.0])
    tokens, _ = torch_keyed_draw(logits.expand(300, -1), 1.0, keys_of(300, seed=1))
    p = torch.softmax(logits[0], -1)
    by_block = torch.stack([p[:BLOCK].sum(), p[BLOCK : 2 * BLOCK].sum(), p[2 * BLOCK]])
    assert chi_squared(tokens // BLOCK, by_block) < 13.8  # 2 degrees of freedom: p = 0.001


@pytest.mark.usefixtures("by_triton")
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize(
    ("vocabulary", "dtype"), [(1, torch.float32), (5, torch.float32), (BLOCK + 1, torch.bfloat16)], ids=str
)
def test_kernels_draw_what_the_torch_path_draws(vocabulary: int, dtype: torch.dtype, temperature: float) -> None:
    logits = logits_of(12, vocabulary, dtype)
    keys = keys_of(12, seed=2**62 + 5, first=2**40, step=3)
    tokens, logps = keyed_draw(logits, temperature, keys)
    expected_tokens, expected_logps = torch_keyed_draw(logits, temperature, keys)
    assert tokens.tolist() == expected_tokens.tolist()
    exact = torch.log_softmax(logits.double() / (temperature or 1.0), -1).gather(1, tokens[:, None])[:, 0]
    bound = logp_bound(float(logits.float().abs().max()) / (temperature or 1.0))
    assert float((logps - exact).abs().max()) < bound
    assert float((expected_logps - exact).abs().max()) < bound
    assert logps.dtype == torch.float32 and tokens.dtype == torch.int64


@pytest.mark.usefixtures("by_triton")
def test_a_row_s_token_does_not_depend_on_its_place_or_its_neighbours() -> None:
    logits, keys = logits_of(10, 70), keys_of(10, seed=9)
    order = torch.tensor([7, 2, 9])
    apart = DrawKeys(keys.seed, keys.completions[order], keys.steps[order])
    together = keyed_draw(logits, 1.0, keys)
    for got, wanted in zip(keyed_draw(logits[order], 1.0, apart), together, strict=True):
        assert torch.equal(got, wanted[order])


@pytest.mark.parametrize("change", ["seed", "first", "step"])
def test_other_seeds_completions_and_steps_give_other_tokens(change: str) -> None:
    flat = torch.zeros(16, 1000)
    tokens, _ = torch_keyed_draw(flat, 1.0, keys_of(16))
    others, _ = torch_keyed_draw(flat, 1.0, keys_of(16, **{change: 64}))
    assert (tokens == others).sum() <= 1


@pytest.mark.usefixtures("by_triton")
def test_greedy_takes_the_first_of_equals_at_temperature_one() -> None:
    logits = torch.zeros(2, 2 * BLOCK)
    logits[0, [5, 9, BLOCK + 1]] = 4.0
    logits[1, [BLOCK + 2, BLOCK + 3]] = 4.0
    tokens, logps = keyed_draw(logits, 0.0, keys_of(2))
    assert tokens.tolist() == [5, BLOCK + 2]
    torch.testing.assert_close(logps, torch.log_softmax(logits, -1)[[0, 1], tokens])


@pytest.mark.usefixtures("by_triton")
def test_a_certain_token_is_drawn_wherever_it_lies_with_log_probability_zero() -> None:
    certain = torch.full((3, BLOCK + 5), -torch.inf)
    places = torch.tensor([0, BLOCK - 1, BLOCK + 4])
    certain[torch.arange(3), places] = 7.0
    for drawn in (keyed_draw, torch_keyed_draw):
        tokens, logps = drawn(certain, 1.0, keys_of(3))
        assert torch.equal(tokens, places)
        assert (logps == 0).all()


def test_an_exponential_is_as_fine_as_its_uniform_number_however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of probability p wins against certainty when its E is below p: values down to 2^-65 occur, unrounded."""
    words = torch.tensor([[0, 1, 1 << 31, 0, 5, 1 << 27, 1 << 31, 0xFFFFFFFF], [0, 0, 0, 1, 3, 9, 0, 0xFFFFFFFF]])
    monkeypatch.setattr(definition, "philox_words", lambda counters, keys: (words[:1], words[1:]))
    found = definition._exponentials(torch.zeros(1, 8), keys_of(1))[0].double()
    u = (words[0].double() + 0.5) * 2.0**-64 + words[1].double() * 2.0**-32
    exact = -torch.log1p(-u.clamp(max=1 - 2.0**-24))
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=0)
    assert float(found[0]) == 2.0**-65


@pytest.mark.usefixtures("by_triton")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in the interpreter
def test_a_row_that_is_no_distribution_gives_some_token_and_no_number_and_spoils_no_other() -> None:
    logits = logits_of(3, 9)
    logits[0, 4], logits[1] = torch.nan, -torch.inf
    tokens, logps = keyed_draw(logits, 1.0, keys_of(3))
    assert logps.isnan().tolist() == [True, True, False]
    assert ((tokens >= 0) & (tokens < 9)).all()


@pytest.mark.usefixtures("by_triton")
def test_strided_logits_give_the_same() -> None:
    logits = logits_of(4, 40)
    for strided in (logits.T.contiguous().T, torch.cat([logits, logits], 1)[:, :40]):
        assert not strided.is_contiguous()
        for got, wanted in zip(keyed_draw(strided, 1.0, keys_of(4)), keyed_draw(logits, 1.0, keys_of(4)), strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.usefixtures("by_triton")
def test_the_engine_on_a_gpu_draws_by_seed_completion_and_position() -> None:
    logits, completions, positions = logits_of(6, 500), np.arange(6), np.arange(6) * 3
    draws = Draws(2**64 - 3, 1.0, torch.device("cpu"))
    draws.prepare(completions, positions, 2)
    first, second = draws.draw(logits)[0], draws.draw(logits)[0]
    later = Draws(2**64 - 3, 1.0, torch.device("cpu"))
    later.prepare(completions[::-1].copy(), positions[::-1].copy() + 1, 1)
    assert torch.equal(later.draw(logits.flip(0))[0].flip(0), second)
    assert not torch.equal(first, second)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature is -1"):
        keyed_draw(torch.zeros(1, 3), -1.0, keys_of(1))
    with pytest.raises(ValueError, match="a vocabulary of 0"):
        keyed_draw(torch.zeros(1, 0), 1.0, keys_of(1))


@pytest.mark.parametrize("triton", [False, True])
@pytest.mark.parametrize(("tokens", "rows"), [(500, 517), (4096, 4100), (4100, 4224)])
def test_logits_after_the_vocabulary_change_neither_token_nor_probability(
    tokens: int, rows: int, triton: bool, request: pytest.FixtureRequest
) -> None:
    """By the CPU's cumulative sums and, in Triton's interpreter, by the GPU's kernels."""
    if triton:
        request.getfixturevalue("by_triton")
    logits = logits_of(6, tokens)
    after = torch.cat([logits, torch.full((6, rows - tokens), 50.0)], 1)

    def drawn(given: torch.Tensor, vocabulary: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        draws = Draws(11, 1.0, torch.device("cpu"), vocabulary)
        draws.prepare(np.arange(6), np.arange(6), 1)
        return draws.draw(given)

    for got, wanted in zip(drawn(after, tokens), drawn(logits, None), strict=True):
        assert torch.equal(got, wanted)
    assert (drawn(after, None)[0] >= tokens).all(), "without a vocabulary they would be drawn"
