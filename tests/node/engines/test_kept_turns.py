"""Keys and values of conversations from turn to turn: the same samples, fewer tokens computed, and nothing of old
weights."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from numpy.testing import assert_allclose

from node.engines.engine import GenerationRequest, Sample, Sampling
from node.engines.lean.decoder import LeanDecoder
from node.engines.torch import TorchEngine
from node.policy.policy import Policy

Load = Callable[..., Policy]


def turns(engine: TorchEngine, count: int = 4, *, kept: bool, episodes: int = 5) -> list[Sample]:
    """Returns the samples of conversations of unlike lengths, all episodes in step; one ends after two turns."""
    draws = random.Random(1)
    rows = [[draws.randrange(2, 40) for _ in range(draws.randint(1, 9))] for _ in range(episodes)]
    found = []
    for turn in range(count):
        going = [number for number in range(episodes) if number != 1 or turn < 2]
        asked = [GenerationRequest(tuple(rows[n]), 1, 6, conversation=n if kept else None) for n in going]
        for number, (sample,) in zip(going, engine.generate(asked, Sampling(1.0, turn)), strict=True):
            found.append(sample)
            said = [draws.randrange(2, 40) for _ in range(draws.randint(1, 5))]
            rows[number] += [*sample.token_ids.tolist(), *said]
    return found


def assert_alike(found: list[Sample], expected: list[Sample]) -> None:
    assert [each.token_ids.tolist() for each in found] == [each.token_ids.tolist() for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one.logps, other.logps, atol=1e-4)


def computed(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that gets the prompt tokens which the engine computes, and those which it has."""
    noted = [0, 0]
    decoder: Any = engine._decoder
    logits = decoder._prompt_logits

    def note(prompts: Any, known: Any, keep: Any) -> Any:
        noted[0] += sum(map(len, prompts)) - sum(known)
        noted[1] += sum(known)
        return logits(prompts, known, keep)

    monkeypatch.setattr(decoder, "_prompt_logits", note)
    return noted


@pytest.mark.parametrize("rows", [5, 2])
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("name", ["qwen3", "llama-scaled", "neox", "gpt2"])
def test_turns_are_the_same_whether_they_are_kept_or_computed_anew(
    load_policy: Load, name: str, drafts: bool, rows: int
) -> None:
    policy = load_policy(name)
    kept, anew = (TorchEngine(policy, rows=rows, seed=0, drafts=drafts) for _ in range(2))
    assert_alike(turns(kept, kept=True), turns(anew, kept=False))


def test_turn_costs_its_new_tokens(load_policy: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load_policy("qwen3")
    engine = TorchEngine(policy, rows=5, seed=0)
    assert isinstance(engine._decoder, LeanDecoder)
    noted = computed(engine, monkeypatch)
    found = turns(engine, kept=True)
    sampled = sum(len(each.token_ids) for each in found)
    assert 0 < noted[0] <= 5 * 9 + sampled + len(found) * 5  # each prompt, action and observation once
    assert noted[1] > noted[0]


def test_nothing_is_kept_over_new_weights_a_release_or_another_beginning(
    load_policy: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = load_policy("qwen3")
    engine = TorchEngine(policy, rows=5, seed=0)
    noted = computed(engine, monkeypatch)
    asked = GenerationRequest((3, 4, 5), 1, 6, conversation=7)

    def following() -> GenerationRequest:
        ((sample,),) = engine.generate([asked], Sampling(1.0, 3))
        noted[:] = [0, 0]
        return GenerationRequest((3, 4, 5, *sample.token_ids.tolist(), 6), 1, 6, conversation=7)

    engine.generate([following()], Sampling(1.0, 4))
    assert noted[1] > 0
    changed = following()
    engine.load_weights(1, {name: tensor * 1.5 for name, tensor in policy.trainable().items()})
    ((sample,),) = engine.generate([changed], Sampling(1.0, 4))
    ((anew,),) = TorchEngine(policy, rows=5, seed=0).generate([changed], Sampling(1.0, 4))
    assert noted[1] == 0
    assert_alike([sample], [anew])
    for forget in (engine.release, lambda: engine.generate([asked], Sampling(1.0, 9)), lambda: None):
        again = following()
        forget()
        if forget is not engine.release:
            again = GenerationRequest((9, *again.prompt_ids[1:]), 1, 6, conversation=7)
        noted[:] = [0, 0]
        engine.generate([again], Sampling(1.0, 4))
        assert noted[1] == 0


def test_no_more_is_kept_than_the_batch_takes(load_policy: Load) -> None:
    engine = TorchEngine(load_policy("qwen3"), rows=2, seed=0)
    turns(engine, kept=True, episodes=40)
    assert 0 < sum(past.nbytes for _, past in engine._pasts.values()) <= engine.cache_bytes
    with torch.inference_mode():
        engine.release()
    assert not engine._pasts
