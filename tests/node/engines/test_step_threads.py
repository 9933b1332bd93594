"""The choice of threads, in simulated time; and that it changes no sample."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from node.configuration import PolicySection
from node.engines.engine import GenerationRequest, Sampling
from node.engines.step_threads import LONGEST_WAIT, SHORT_PASS_TOKENS, StepThreads, ThreadTrials, thread_counts
from node.engines.torch import TorchEngine
from node.policy.policy import Policy

Load = Callable[..., Policy]


def run(trials: ThreadTrials, seconds_of: Callable[[int], float], steps: int) -> list[int]:
    used = []
    for _ in range(steps):
        used.append(trials.threads)
        trials.took(seconds_of(trials.threads))
    return used


def test_one_thread_is_taken_where_two_wait_for_each_other_and_two_again_once_the_cores_are_free() -> None:
    trials = ThreadTrials((1, 2))
    busy = run(trials, lambda threads: 0.005 * threads, 3000)
    assert set(busy[:4]) == {2}
    assert busy[1000:].count(1) / 2000 > 0.95
    free = run(trials, lambda threads: 0.005 / threads, 12_000)
    assert free[8000:].count(2) / 4000 > 0.95


def test_no_count_is_left_for_an_advantage_within_the_noise() -> None:
    trials = ThreadTrials((1, 2))
    used = run(trials, lambda threads: 0.0098 if threads == 1 else 0.01, 5000)
    assert trials.threads == 2
    assert used.count(1) / 5000 < 0.03


def test_steps_that_grow_while_a_trial_runs_do_not_mislead_it() -> None:
    trials = ThreadTrials((1, 2))
    lengths = iter(range(10_000))
    used = run(trials, lambda threads: 0.010 + 1e-5 * next(lengths), 3000)
    assert used[-1] == 2


def test_trials_become_rarer_while_nothing_changes_and_never_stop() -> None:
    trials = ThreadTrials((1, 2))
    used = run(trials, lambda threads: 0.010 / threads, 20_000)
    assert used[:100].count(1) > 0
    assert 0 < used[10_000:].count(1) / 10_000 < 1 / LONGEST_WAIT


def test_best_of_many_counts_is_found_step_by_step() -> None:
    trials = ThreadTrials(thread_counts(16))
    used = run(trials, lambda threads: 0.01 * abs(threads - 4.5), 4000)
    assert used[2000:].count(4) / 2000 > 0.9


@pytest.mark.parametrize(("most", "counts"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))])
def test_counts_that_are_tried(most: int, counts: tuple[int, ...]) -> None:
    assert thread_counts(most) == counts


def sampled(engine: TorchEngine, asked: list[GenerationRequest]) -> list[tuple[list[int], list[float]]]:
    groups = engine.generate(asked, Sampling(seed=5))
    return [(s.token_ids.tolist(), s.logps.tolist()) for group in groups for s in group]


@pytest.mark.parametrize("model", ["qwen3", "builtin:wren"])
@pytest.mark.parametrize("shared", [False, True])
def test_samples_with_one_thread_and_with_two_are_equal_to_the_bit(load_policy: Load, model: str, shared: bool) -> None:
    asked = [GenerationRequest([2 + i, 7, 9 + i], 8, 5) for i in range(8)]
    builtin = model.startswith("builtin:")
    policy = Policy.load(PolicySection(model=model, device="cpu")) if builtin else load_policy(model)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            engine = TorchEngine(policy, rows=64, seed=0, shared_prompts=shared, adaptive_threads=False)
            results.append(sampled(engine, asked))
    finally:
        torch.set_num_threads(before)
    assert results[0] == results[1]


def test_number_of_threads_is_restored_after_the_steps_and_after_a_failure() -> None:
    before = torch.get_num_threads()
    ticks = iter(float(n) for n in range(10_000))
    threads = StepThreads(adapting=True, clock=lambda: next(ticks))
    used = set()
    try:
        torch.set_num_threads(2)
        with pytest.raises(ZeroDivisionError), threads.chosen():
            for _ in range(40):
                with threads.step():
                    used.add(torch.get_num_threads())
            raise ZeroDivisionError
        assert used == {1, 2}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_short_pass_over_prompts_has_the_threads_of_a_step_and_a_long_one_the_most() -> None:
    before = torch.get_num_threads()
    seconds = 0.0

    def clock() -> float:
        nonlocal seconds
        seconds += 0.01 * torch.get_num_threads()
        return seconds

    threads = StepThreads(adapting=True, clock=clock)
    used = []
    try:
        torch.set_num_threads(2)
        with threads.chosen():
            for _ in range(40):
                with threads.step():
                    pass
            for tokens in (SHORT_PASS_TOKENS, SHORT_PASS_TOKENS + 1):
                threads.before_prompts(tokens)
                used.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
    assert used == [1, 2]
