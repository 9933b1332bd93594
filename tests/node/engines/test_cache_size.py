"""The plan of the cache, and that the decoder allocates what was planned."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from node.engines.cache_size import AttentionShape, cache_bytes, plan_cache, prompt_room
from node.engines.engine import GenerationRequest, Sampling
from node.engines.lean.decoder import LeanDecoder
from node.engines.torch import TorchEngine
from node.policy.policy import Policy

Load = Callable[..., Policy]
SHAPE = AttentionShape(layers=24, hidden=896, kv_heads=2, queries=7, head_size=64, element_bytes=2)


def test_long_prompt_of_eight_completions_takes_less_than_a_quarter_of_what_copies_would() -> None:
    own = plan_cache(64, [8] * 8, 512, 64, shared=False)
    assert (own.slots, own.prompts) == (576, 0)
    assert cache_bytes(SHAPE, 64, [8] * 8, 512, 64) <= own.bytes(SHAPE) / 4
    # 24 layers of keys and values, 2 heads of 64 coordinates, 2 bytes; and a mask of 2 heads
    assert own.bytes(SHAPE) == (24 * 2 * 2 * 64 + 2) * 2 * 64 * 576


@pytest.mark.parametrize(
    ("completions", "longest_prompt", "shared"),
    [([8] * 4, 512, True), ([1] * 32, 512, False), ([8] * 4, 24, False), ([2] * 16, 128, True)],
)
def test_layout_is_the_one_that_saves_enough(completions: list[int], longest_prompt: int, shared: bool) -> None:
    plan = plan_cache(32, completions, longest_prompt, 64)
    assert plan.shared is shared
    assert "slots a row" in plan.reason


@pytest.mark.parametrize(
    ("completions", "rows", "room"),
    [
        ([8] * 8, 64, 8),  # everything fits: each prompt once
        ([8] * 100, 64, 13),  # 64 neighbouring completions touch 9 prompts; half as many again
        ([1] * 40 + [8] * 20, 64, 60),  # resumed completions come first: 44 prompts begin together
        ([1] * 100, 8, 8),  # never more than rows
        ([100], 8, 1),
    ],
)
def test_room_for_prompts(completions: list[int], rows: int, room: int) -> None:
    assert prompt_room(completions, rows) == room


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("rows", "dtype"), [(64, "float32"), (5, "float32"), (64, "bfloat16")])
def test_decoder_allocates_what_is_planned_and_gives_all_of_it_back(
    load_policy: Load, rows: int, dtype: str, shared: bool
) -> None:
    engine = TorchEngine(load_policy("qwen3", dtype=dtype), rows=rows, seed=0, shared_prompts=shared)
    asked = [GenerationRequest([5] * length, 3, 9) for length in (4, 33, 20)]
    engine.generate(asked, Sampling(seed=0))
    decoder = engine._decoder
    assert isinstance(decoder, LeanDecoder)
    plan = plan_cache(rows, [3, 3, 3], 33, 9, shared=shared)
    assert engine.cache_bytes == plan.bytes(decoder.attention_shape) > 0
    engine.release()
    assert engine.cache_bytes == 0
    engine.release()
    again = engine.generate(asked, Sampling(seed=0))
    assert [len(samples) for samples in again] == [3, 3, 3]


def test_generic_decoder_gives_its_cache_back_too(load_policy: Load) -> None:
    engine = TorchEngine(load_policy("gpt2"), rows=4, seed=0)
    answers = iter([False, False, True])
    engine.advance([GenerationRequest([5] * 4, 3, 9)], Sampling(seed=0), lambda complete: next(answers))
    assert engine.cache_bytes > 0
    engine.release()
    assert engine.cache_bytes == 0
