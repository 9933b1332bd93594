"""Generation that is interrupted and resumed, under the same weights and under newer ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from node.engines.engine import GenerationProgress, GenerationRequest, Partial, Sample, Sampling, Segment
from node.engines.torch import TorchEngine
from node.policy.policy import Policy
from protocol.errors import ConfigurationError
from protocol.rollouts import FinishReason
from tests.examples import examples

LEAN_AND_GENERIC = ["qwen3", "gpt2"]
Load = Callable[..., Policy]


def requests(count: int = 6, completions: int = 3, longest: int = 24) -> list[GenerationRequest]:
    random = np.random.default_rng(count)
    return [
        GenerationRequest(random.integers(2, 40, random.integers(1, 15)).tolist(), completions, int(limit))
        for limit in random.integers(longest // 2, longest + 1, count)
    ]


class After:
    """Returns True after so many tokens of the batch."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def __call__(self, complete: int) -> bool:
        self._left -= 1
        return self._left < 0


def going_on(asked: Sequence[GenerationRequest], reached: Sequence[GenerationProgress]) -> list[GenerationRequest]:
    return [replace(request, begun=progress) for request, progress in zip(asked, reached, strict=True)]


def moved(policy: Policy, seed: int) -> None:
    """Other weights, as after a large step."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


def forward_logps(policy: Policy, prompt: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    with torch.no_grad():
        logits = policy.model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens)[:, None])[:, 0]


def token_ids(reached: Sequence[GenerationProgress]) -> list[list[list[int]]]:
    return [[each.token_ids.tolist() for each in progress.sequences] for progress in reached]


def same(one: GenerationProgress, other: GenerationProgress) -> bool:
    return token_ids([one]) == token_ids([other]) and all(
        np.array_equal(a.logps, b.logps) and a.segments == b.segments
        for a, b in zip(one.sequences, other.sequences, strict=True)
    )


@pytest.mark.parametrize("name", LEAN_AND_GENERIC)
def test_each_segment_has_the_log_probabilities_of_the_weights_that_sampled_it(load_policy: Load, name: str) -> None:
    policy, asked = load_policy(name), requests()
    engine = TorchEngine(policy, rows=7, seed=0)
    reached = [GenerationProgress() for _ in asked]
    says: dict[int, Callable[[Sequence[int], Sequence[int]], torch.Tensor]] = {}
    for version in range(3):
        moved(policy, version)
        engine.load_weights(version, policy.trainable())
        copied = policy.separate()
        says[version] = partial(forward_logps, copied)
        steps = 9 if version < 2 else 10_000
        reached = engine.advance(going_on(asked, reached), Sampling(), After(steps))
    versions_seen = set()
    for request, progress in zip(asked, reached, strict=True):
        assert len(progress.samples) == request.completions and not progress.partials
        for sample in progress.samples:
            assert sum(segment.tokens for segment in sample.segments) == len(sample.token_ids) == len(sample.logps)
            position = 0
            for segment in sample.segments:
                part = slice(position, position + segment.tokens)
                expected = says[segment.version](request.prompt_ids, sample.token_ids.tolist())[part]
                torch.testing.assert_close(torch.from_numpy(sample.logps[part].copy()), expected, atol=1e-4, rtol=0)
                position = part.stop
            versions_seen.add(tuple(segment.version for segment in sample.segments))
    assert any(len(versions) > 1 for versions in versions_seen)
    assert all(list(versions) == sorted(set(versions)) for versions in versions_seen)


@pytest.mark.parametrize("name", LEAN_AND_GENERIC)
@examples(8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stops=st.lists(st.integers(0, 12), max_size=4), rows=st.integers(1, 20))
def test_greedy_completions_are_the_same_however_often_they_are_interrupted(
    load_policy: Load, name: str, stops: list[int], rows: int
) -> None:
    policy, asked = load_policy(name), requests(4, completions=2, longest=16)
    whole = TorchEngine(policy, rows=64, seed=0).generate(asked, Sampling(0.0))
    engine = TorchEngine(policy, rows=rows, seed=0)
    reached = [GenerationProgress() for _ in asked]
    for steps in stops:
        reached = engine.advance(going_on(asked, reached), Sampling(0.0), After(steps))
    final = engine.generate(going_on(asked, reached), Sampling(0.0))
    for ours, theirs in zip(final, whole, strict=True):
        assert [s.token_ids.tolist() for s in ours] == [s.token_ids.tolist() for s in theirs]
        assert [s.finish for s in ours] == [s.finish for s in theirs]
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one.logps, other.logps, atol=1e-4)
            assert one.segments == (Segment(0, len(one.token_ids)),)


def test_never_enough_gives_what_generate_gives(load_policy: Load) -> None:
    policy, asked = load_policy("qwen3"), requests()
    engine = TorchEngine(policy, rows=7, seed=0)
    whole = engine.generate(asked, Sampling(seed=3))
    reached = engine.advance(asked, Sampling(seed=3), lambda complete: False)
    assert [[s.token_ids.tolist() for s in group] for group in whole] == token_ids(reached)


@pytest.mark.parametrize("wanted", [1, 3, 5])
def test_stops_once_enough_groups_are_complete_and_keeps_the_rest(load_policy: Load, wanted: int) -> None:
    policy, asked = load_policy("llama"), [replace(r, max_new_tokens=4 * (i + 1)) for i, r in enumerate(requests())]
    reached = TorchEngine(policy, rows=64, seed=0).advance(asked, Sampling(), lambda complete: complete >= wanted)
    complete = [len(p.samples) == r.completions for p, r in zip(reached, asked, strict=True)]
    assert wanted <= sum(complete) < len(asked)
    for request, progress in zip(asked, reached, strict=True):
        assert len(progress.samples) + len(progress.partials) == request.completions
        for begun in progress.partials:
            assert 0 < len(begun.token_ids) < request.max_new_tokens
            assert policy.tokens.eos_id not in begun.token_ids


def test_stop_before_the_first_token_leaves_everything_as_it_was(load_policy: Load) -> None:
    policy, asked = load_policy("qwen3"), requests()
    engine = TorchEngine(policy, rows=64, seed=0)
    assert all(p.sequences == () for p in engine.advance(asked, Sampling(), lambda complete: True))
    begun = engine.advance(asked, Sampling(), After(3))
    engine.load_weights(1, policy.trainable())
    again = engine.advance(going_on(asked, begun), Sampling(), lambda complete: True)
    assert all(same(one, other) for one, other in zip(begun, again, strict=True))


def test_stop_while_completions_wait_for_rows_leaves_those_unbegun(load_policy: Load) -> None:
    policy, asked = load_policy("qwen3"), requests()
    engine = TorchEngine(policy, rows=2, seed=0)
    reached = engine.advance(asked, Sampling(), After(2))
    assert sum(len(p.sequences) for p in reached) <= 4
    assert reached[-1].sequences == ()
    final = engine.generate(going_on(asked, reached), Sampling())
    assert [len(samples) for samples in final] == [request.completions for request in asked]


def test_equal_seeds_and_calls_give_equal_interruptions(load_policy: Load) -> None:
    policy, asked = load_policy("neox"), requests()

    def sampled() -> list[GenerationProgress]:
        engine = TorchEngine(policy, rows=7, seed=0)
        begun = engine.advance(asked, Sampling(seed=1), After(5))
        return engine.advance(going_on(asked, begun), Sampling(seed=2), After(8))

    assert all(same(one, other) for one, other in zip(sampled(), sampled(), strict=True))


def test_begun_completion_that_has_all_its_tokens_is_ended_and_not_sampled(load_policy: Load) -> None:
    policy = load_policy("gpt2")  # a context of 96
    engine = TorchEngine(policy, rows=4, seed=0)

    def partial(length: int) -> Partial:
        return Partial(np.full(length, 5), np.full(length, -1.0, np.float32), (Segment(0, length),))

    at_limit = GenerationRequest([5] * 3, 1, 8, GenerationProgress(partials=(partial(8),)))
    at_context = GenerationRequest([5] * 90, 1, 64, GenerationProgress(partials=(partial(6),)))
    nearly = GenerationRequest([5] * 90, 1, 64, GenerationProgress(partials=(partial(5),)))
    reached = engine.advance([at_limit, at_context, nearly], Sampling())
    assert [len(p.samples[0].token_ids) for p in reached] == [8, 6, 6]
    assert reached[0].samples[0].finish is FinishReason.LENGTH
    with pytest.raises(ConfigurationError, match="96"):
        engine.advance([GenerationRequest([5] * 96, 1, 8, GenerationProgress(partials=(partial(2),)))], Sampling())


def test_more_begun_than_asked_for_is_refused(load_policy: Load) -> None:
    sample = Sample(np.array([5]), np.zeros(1, np.float32), FinishReason.LENGTH, (Segment(0, 1),))
    with pytest.raises(ValueError, match=r"1.*2"):
        TorchEngine(load_policy("llama"), rows=4, seed=0).advance(
            [GenerationRequest([5], 1, 8, GenerationProgress((sample, sample)))], Sampling()
        )


@pytest.mark.parametrize(("name", "adapter_rank"), [("qwen3", 0), ("gpt2", 0), ("qwen3", 4)])
def test_engine_that_owns_its_weights_holds_older_ones_while_the_learner_changes_its_own(
    load_policy: Load, name: str, adapter_rank: int
) -> None:
    policy, asked = load_policy(name, adapter_rank=adapter_rank), requests()
    engine = TorchEngine(policy, rows=64, seed=0, owns_weights=True)
    old = policy.separate()
    kept = {key: p.detach().clone() for key, p in policy.trainable().items()}
    before = engine.generate(asked, Sampling(0.0))
    moved(policy, 1)
    changed = {key: p.detach().clone() for key, p in policy.trainable().items()}
    engine.load_weights(0, kept)
    given_ = engine.generate(asked, Sampling(0.0))
    assert [s.token_ids.tolist() for g in given_ for s in g] == [s.token_ids.tolist() for g in before for s in g]
    first = given_[0][0]
    expected = forward_logps(old, asked[0].prompt_ids, first.token_ids.tolist())
    torch.testing.assert_close(torch.from_numpy(first.logps), expected, atol=1e-4, rtol=0)
    assert all(torch.equal(changed[key], p) for key, p in policy.trainable().items())
    engine.load_weights(1, policy.trainable())
    newer = engine.generate(asked, Sampling(0.0))[0][0]
    expected = forward_logps(policy, asked[0].prompt_ids, newer.token_ids.tolist())
    torch.testing.assert_close(torch.from_numpy(newer.logps), expected, atol=1e-4, rtol=0)


def test_separate_policy_shares_what_is_not_trained_and_nothing_else(load_policy: Load) -> None:
    policy = load_policy("qwen3", adapter_rank=4)
    other = policy.separate()
    for (name, ours), (other_name, theirs) in zip(
        policy.model.named_parameters(), other.model.named_parameters(), strict=True
    ):
        assert name == other_name
        assert (ours is theirs) == (not ours.requires_grad)
        assert ours.requires_grad == theirs.requires_grad
