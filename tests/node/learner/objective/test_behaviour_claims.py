"""Which claimed log-probabilities are believed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.learner.objective.training_groups import usable_logps
from protocol.messages import PromptRef
from protocol.rollouts import Completion, FinishReason, Group


def completion(ids: Sequence[int], logps: Sequence[float]) -> Completion:
    return Completion(
        b"x" * len(ids),
        np.array(ids, dtype=np.int64),
        np.ones(len(ids), dtype=np.int64),
        np.array(logps, dtype=np.float32),
        FinishReason.LENGTH,
        1.0,
    )


def group(*completions: Completion) -> Group:
    return Group(PromptRef("t", 1, b"c" * 16, 1), b"f" * 16, b"t" * 16, 1, completions)


def test_zeros_in_place_of_the_real_ones_are_found_out() -> None:
    distinct = [completion([i], [0.0]) for i in range(4)]
    assert usable_logps(group(*distinct)) == (False,) * 4


def test_one_answer_that_is_certain_may_come_any_number_of_times() -> None:
    assert usable_logps(group(*[completion([5, 6], [0.0, 0.0])] * 8)) == (True,) * 8


def test_a_group_resumed_after_a_change_of_weights_may_sum_to_more_than_one() -> None:
    assert usable_logps(group(completion([1], [math.log(0.9)]), completion([2], [math.log(0.9)]))) == (True, True)


@pytest.mark.parametrize("logps", [[-28.0], [-14.0] * 12, [math.nan], [-math.inf], [0.1], [-1.0, -1.0]])
def test_what_no_policy_would_have_sampled_or_written_down_is_unusable_alone(logps: list[float]) -> None:
    ids = list(range(1 if len(logps) < 12 else 12))
    assert usable_logps(group(completion(ids, logps), completion([9], [-1.0]))) == (False, True)


@pytest.mark.parametrize("logps", [[-26.0], [-12.0] * 12, [], [-1e-7]])
def test_what_is_merely_unlikely_is_believed(logps: list[float]) -> None:
    assert usable_logps(group(completion(list(range(len(logps))), logps))) == (True,)


@given(st.integers(0, 10_000), st.integers(2, 200), st.integers(1, 12), st.integers(2, 16))
def test_samples_of_a_policy_are_believed(seed: int, vocabulary: int, length: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(length, vocabulary)) * rng.uniform(0, 8)
    logps = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    samples = [[int(rng.choice(vocabulary, p=np.exp(row))) for row in logps] for _ in range(size)]
    sampled = [completion(ids, np.minimum(logps[np.arange(length), ids], 0).tolist()) for ids in samples]
    assert all(usable_logps(group(*sampled)))


def test_end_of_sequence_sets_completions_of_equal_ids_apart() -> None:
    first = completion([1], [0.0])
    stopped = replace(first, finish=FinishReason.STOP)
    third = completion([2], [0.0])
    assert usable_logps(group(first, stopped, third)) == (False,) * 3
