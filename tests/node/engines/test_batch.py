"""A completion's tokens do not depend on the batch that it is sampled in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from node.engines.batch import joining_count
from node.engines.engine import GenerationRequest, Sampling
from node.engines.resumption import starts_of
from node.engines.torch import TorchEngine
from node.policy.policy import Policy
from protocol.streams.engine_batches import Sampled

Load = Callable[..., Policy]
Samples = list[tuple[list[int], np.ndarray[Any, np.dtype[np.float32]]]]


def requests() -> list[GenerationRequest]:
    random = np.random.default_rng(0)
    return [
        GenerationRequest(random.integers(2, 40, length).tolist(), completions, limit)
        for length, completions, limit in ((14, 5, 20), (3, 1, 31), (9, 8, 9), (12, 3, 26), (1, 4, 17))
    ]


def sampled(policy: Policy, *, rows: int = 64, **options: Any) -> Samples:
    groups = TorchEngine(policy, rows=rows, seed=0, **options).generate(requests(), Sampling(seed=11))
    return [(sample.token_ids.tolist(), sample.logps) for group in groups for sample in group]


def same(ours: Samples, theirs: Samples) -> None:
    assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in theirs]
    for (_, ours_logps), (_, theirs_logps) in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(ours_logps, theirs_logps, atol=1e-4)


@pytest.mark.parametrize("name", ["qwen3", "llama", "neox"])
def test_samples_of_both_layouts_are_equal_at_any_number_of_rows(load_policy: Load, name: str) -> None:
    policy = load_policy(name)
    whole = sampled(policy, shared_prompts=False)
    for rows in (64, 9, 2):
        same(sampled(policy, rows=rows, shared_prompts=True), whole)
        same(sampled(policy, rows=rows, shared_prompts=False), whole)


@pytest.mark.parametrize("look_every", [2, 7, 16])
@pytest.mark.parametrize(("name", "shared"), [("qwen3", True), ("neox", False), ("gpt2", None)])
def test_samples_are_those_of_a_host_that_looks_at_every_token(
    load_policy: Load, name: str, shared: bool | None, look_every: int
) -> None:
    policy = load_policy(name)
    for rows in (64, 5):
        seldom = sampled(policy, rows=rows, shared_prompts=shared, look_every=look_every)
        same(seldom, sampled(policy, rows=rows, shared_prompts=shared))


def test_batch_that_is_looked_at_seldom_may_be_interrupted_and_resumed(load_policy: Load) -> None:
    policy, asked = load_policy("qwen3"), requests()
    engine = TorchEngine(policy, rows=9, seed=0, look_every=4, shared_prompts=True)
    looks = iter(range(100))
    begun = engine.advance(asked, Sampling(0.0), lambda complete: next(looks) >= 3)
    lengths = {len(partial.token_ids) for progress in begun for partial in progress.partials}
    assert lengths == {12}  # three looks of four tokens each
    resumed = engine.generate([replace(r, begun=b) for r, b in zip(asked, begun, strict=True)], Sampling(0.0))
    whole = TorchEngine(policy, rows=64, seed=0, shared_prompts=False).generate(asked, Sampling(0.0))
    for ours, theirs in zip(resumed, whole, strict=True):
        assert sorted(s.token_ids.tolist() for s in ours) == sorted(s.token_ids.tolist() for s in theirs)


def test_crowded_batch_that_is_looked_at_as_seldom_as_possible_has_room_for_what_is_dropped(load_policy: Load) -> None:
    policy = load_policy("qwen3")
    asked = [GenerationRequest([5 + index, 7], 2, 33 - 5 * (index % 6)) for index in range(12)]
    for shared in (False, True):
        whole = TorchEngine(policy, rows=24, seed=0, shared_prompts=shared).generate(asked, Sampling(seed=0))
        seldom = TorchEngine(policy, rows=3, seed=0, shared_prompts=shared, look_every=32)
        for ours, theirs in zip(seldom.generate(asked, Sampling(seed=0)), whole, strict=True):
            assert [s.token_ids.tolist() for s in ours] == [s.token_ids.tolist() for s in theirs]
    with pytest.raises(ValueError, match="1 to 32"):
        TorchEngine(policy, rows=3, seed=0, look_every=33)


def test_completions_without_room_for_their_prompt_wait_until_another_has_ended(load_policy: Load) -> None:
    policy = load_policy("qwen3")
    engine = TorchEngine(policy, rows=8, seed=0, shared_prompts=True)
    held: list[int] = []
    prefill = engine._decoder.prefill

    def watched(prompts: Any, completions: Any) -> Any:
        computed = prefill(prompts, completions)
        assert engine._decoder.free_prompts is not None
        held.append(engine._decoder.free_prompts)
        return computed

    engine._decoder.prefill = watched  # type: ignore[method-assign]
    asked = [GenerationRequest([5 + index, 7], 4, 30) for index in range(12)]
    groups = engine.generate(asked, Sampling(seed=0))
    assert [len(samples) for samples in groups] == [4] * 12
    assert min(held) == 0  # at some time no further prompt had room
    others = TorchEngine(policy, rows=64, seed=0).generate(asked, Sampling(seed=0))
    for ours, theirs in zip(groups, others, strict=True):
        assert [s.token_ids.tolist() for s in ours] == [s.token_ids.tolist() for s in theirs]


def test_completions_join_when_an_eighth_of_the_rows_is_free_or_all_fit() -> None:
    assert joining_count(present=0, waiting=200, rows=128) == 128
    assert joining_count(present=120, waiting=50, rows=128) == 0
    assert joining_count(present=112, waiting=50, rows=128) == 16
    assert joining_count(present=120, waiting=5, rows=128) == 5
    assert joining_count(present=4, waiting=9, rows=5) == 1
    assert joining_count(present=3, waiting=0, rows=8) == 0


@pytest.mark.parametrize(("look_every", "drafts"), [(1, False), (1, True), (4, False)])
def test_groups_are_handed_over_in_the_order_in_which_they_end_and_are_what_is_sampled_otherwise(
    load_policy: Load, look_every: int, drafts: bool
) -> None:
    policy, asked = load_policy("qwen3"), requests()
    engine = TorchEngine(policy, rows=6, seed=0, look_every=look_every, drafts=drafts)
    starts = starts_of(asked, [request.max_new_tokens for request in asked])
    whole = engine.sample(starts, len(asked), Sampling(seed=11))
    handed: list[tuple[int, Sampled]] = []
    known_at_look: list[int] = []

    def enough(complete: int) -> bool:
        known_at_look.append(len(handed))
        return False

    rest = engine.sample(
        starts, len(asked), Sampling(seed=11), enough, lambda number, sampled: handed.append((number, sampled))
    )
    assert [len(tokens) for tokens, _ in rest] == [0] * len(whole)
    assert sorted(number for number, _ in handed) == list(range(len(whole)))
    assert len(set(known_at_look)) > 3 and known_at_look[-1] == len(whole)  # group after group, not at the end
    owners = [start.request for start in starts for _ in range(start.completions)]
    order = list(dict.fromkeys(owners[number] for number, _ in handed))
    assert [number for number, _ in handed] == [n for group in order for n in range(len(owners)) if owners[n] == group]
    for number, (tokens, logps) in handed:
        assert tokens.tolist() == whole[number][0].tolist()
        np.testing.assert_allclose(logps, whole[number][1], atol=1e-6)


def test_what_has_not_ended_when_there_is_enough_is_returned_and_not_handed_over(load_policy: Load) -> None:
    policy, asked = load_policy("qwen3"), requests()
    starts = starts_of(asked, [request.max_new_tokens for request in asked])
    handed: set[int] = set()
    rest = TorchEngine(policy, rows=64, seed=0).sample(
        starts,
        len(asked),
        Sampling(seed=11),
        lambda complete: complete >= 2,
        lambda number, sampled: handed.add(number),
    )
    sampled = {number for number, (tokens, _) in enumerate(rest) if len(tokens)}
    assert handed and sampled and not handed & sampled and len(handed | sampled) == len(rest)
