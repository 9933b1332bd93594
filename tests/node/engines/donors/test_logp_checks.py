"""What the checks of a donor's log-probabilities accept and find, and that they compute what an engine samples by."""

from __future__ import annotations

import random

import numpy as np
import pytest

from node.engines.donors import logp_checks
from node.engines.donors.logp_checks import (
    CHECKED,
    MANY,
    MEAN,
    MOST,
    SLACK,
    CheckedSoFar,
    Measured,
    chosen_to_check,
    fault_of_claims,
    fault_so_far,
    measure,
)
from node.engines.engine import GenerationRequest, Sampling
from node.engines.torch import TorchEngine
from node.policy.policy import Policy
from protocol.streams.engine_batches import Sampled
from tests.node.engines.conftest import CONFIGURATIONS
from tests.node.engines.process.hosted import Load, embedded

PROMPT = [5, 6, 7, 9]


def sampled(policy: Policy, completions: int, *, temperature: float = 1.0, rounded: bool = False) -> list[Sampled]:
    engine = embedded(policy, 1) if rounded else TorchEngine(policy, rows=64, seed=0)
    (samples,) = engine.generate([GenerationRequest(PROMPT, completions, 40)], Sampling(temperature, seed=1))
    return [(each.token_ids, each.logps) for each in samples]


def checked(policy: Policy, drawn: list[Sampled], temperature: float = 1.0) -> CheckedSoFar:
    total = CheckedSoFar()
    found = measure(policy, [(PROMPT, token_ids.tolist()) for token_ids, _ in drawn], temperature)
    for (_, claimed), measured in zip(drawn, found, strict=True):
        assert fault_of_claims(claimed, measured) is None
        total = total.with_one(claimed, measured)
    return total


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_it_measures_what_the_engine_sampled_by(load_policy: Load, name: str, temperature: float) -> None:
    policy = load_policy(name)
    drawn = sampled(policy, 4, temperature=temperature)
    short = [(token_ids[:3], claimed[:3]) for token_ids, claimed in drawn[:2]]  # of other lengths than the rest
    every = [*short, *drawn]
    measured = measure(policy, [(PROMPT, token_ids.tolist()) for token_ids, _ in every], temperature)
    for (_, claimed), found in zip(every, measured, strict=True):
        np.testing.assert_allclose(found.logps, claimed, atol=1e-4)
        assert found.entropies.min() >= 0 and found.variances.min() >= 0


@pytest.mark.parametrize("section", [{"dtype": "bfloat16"}, {"adapter_rank": 4}])
def test_it_measures_other_kinds_of_policies_too(load_policy: Load, section: dict[str, object]) -> None:
    policy = load_policy("qwen3", **section)
    assert checked(policy, sampled(policy, 4)).tokens > 0


def test_an_honest_donor_with_rounded_weights_stays_within_the_bounds(load_policy: Load) -> None:
    policy = load_policy("qwen3")
    total = checked(policy, sampled(policy, 200, rounded=True))
    assert total.tokens > MANY and fault_so_far(total) is None


def test_the_most_likely_tokens_are_no_draws_though_every_claim_is_true(load_policy: Load) -> None:
    policy = load_policy("qwen3")
    greedy = sampled(policy, 1, temperature=0.0)  # whose log-probabilities are those of temperature 1
    total = checked(policy, greedy * (1 + MANY // len(greedy[0][0])))
    assert "not drawn" in (fault_so_far(total) or "")


def test_small_lies_in_one_direction_are_found_over_time(load_policy: Load) -> None:
    policy = load_policy("qwen3")
    lied = [(token_ids, (claimed - 0.06).astype(np.float32)) for token_ids, claimed in sampled(policy, 200)]
    assert "on average" in (fault_so_far(checked(policy, lied)) or "")


def test_the_bounds_of_one_completion_are_as_stated() -> None:
    measured = Measured(np.full(20, -2.0), np.full(20, 2.0), np.ones(20))
    at_most = np.full(20, -2.0 + 0.99 * (SLACK + 20 * MEAN) / 20, np.float32)
    assert fault_of_claims(at_most, measured) is None
    assert "together" in (fault_of_claims(at_most + 0.01, measured) or "")
    one_off = np.full(40, -2.0, np.float32)
    one_off[3] = -2.0 - MOST * 1.01
    wide = Measured(np.full(40, -2.0), np.full(40, 2.0), np.ones(40))
    assert "a log-probability is off" in (fault_of_claims(one_off, wide) or "")
    assert fault_of_claims(np.full(20, np.nan, np.float32), measured) is not None


def test_passes_of_many_completions_are_bounded(load_policy: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load_policy("qwen3")
    drawn = sampled(policy, 12)
    together = checked(policy, drawn)
    monkeypatch.setattr(logp_checks, "_PASS_TOKENS", 50)
    assert checked(policy, drawn).drift == pytest.approx(together.drift, abs=1e-3)


def test_at_least_two_and_a_sixty_fourth_are_checked_of_those_that_were_begun() -> None:
    draws = random.Random(1)
    some, none = (np.ones(3, np.int64), np.zeros(3, np.float32)), (np.ones(0, np.int64), np.zeros(0, np.float32))
    assert len(chosen_to_check([some] * 320, draws)) == 5
    assert len(chosen_to_check([some] * 3, draws)) == CHECKED
    assert chosen_to_check([none, some, none], draws) == [1]
    assert chosen_to_check([none], draws) == []
