"""Attention without repeated heads and without masks, against transformers' own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask, sliding_window_causal_mask_function

from node.learner.objective.forward import Network
from node.learner.objective.network.attention import BLOCK_QUERIES, grouped_attention, mask_unless_plain
from node.learner.objective.network.prompt_cache import Packed
from tests.node.learner.objective.tiny_networks import VOCABULARY, built

HEADS, SHARED, WIDTH = 4, 2, 8


class Grouped(torch.nn.Module):
    """What an attention function reads of the module that calls it."""

    is_causal = True
    num_key_value_groups = HEADS // SHARED


def inputs(rows: int, length: int, columns: int) -> list[Tensor]:
    seeded = torch.Generator().manual_seed(length + columns)
    shapes = [(rows, HEADS, length, WIDTH), (rows, SHARED, columns, WIDTH), (rows, SHARED, columns, WIDTH)]
    return [torch.randn(shape, generator=seeded, dtype=torch.float64).requires_grad_() for shape in shapes]


def compared(length: int, columns: int, mask: Tensor | None, explicit: Tensor | None, **extra: Any) -> None:
    """Asserts that values and gradients are those of transformers' function with the mask written out."""
    results = []
    for function, given in ((grouped_attention, mask), (sdpa_attention_forward, explicit)):
        tensors = query, key, value = inputs(2, length, columns)
        attended, weights = function(Grouped(), query, key, value, given, scaling=0.3, **extra)
        assert weights is None
        results.append((attended, *torch.autograd.grad(attended.square().sum(), tensors)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("length", "columns"), [(1, 7), (7, 7), (5, 9), (2 * BLOCK_QUERIES + 3, 2 * BLOCK_QUERIES + 20)]
)
def test_queries_at_the_end_of_their_columns_need_no_mask(length: int, columns: int) -> None:
    explicit = torch.ones(length, columns, dtype=torch.bool).tril(columns - length)[None, None]
    compared(length, columns, None, explicit)


def test_a_mask_is_applied_as_it_is() -> None:
    mask = torch.rand(2, 1, 6, 11, generator=torch.Generator().manual_seed(0)) > 0.4
    mask[..., 0] = True
    compared(6, 11, mask, mask)


def test_what_only_transformers_understands_is_left_to_it() -> None:
    bias = torch.randn(1, HEADS, 5, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    explicit = torch.ones(1, 1, 5, 9, dtype=torch.bool).tril(4)
    compared(5, 9, None, explicit, position_bias=bias)


def test_what_only_transformers_understands_of_packed_tokens_sees_the_same_tokens() -> None:
    """Two tokens of a prompt, then two completions of it: of two tokens and of one."""
    spans = np.array([(0, 0, 0), (0, 0, 0), (0, 2, 2), (0, 2, 2), (0, 2, 4)])
    query, key, value = inputs(1, 5, 5)
    bias = torch.randn(1, HEADS, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = torch.tensor([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 0, 0, 1]]).bool()
    extras: list[dict[str, Any]] = [{}, {"position_bias": bias}]
    for extra in extras:
        found, _ = grouped_attention(Grouped(), query, Packed(key, spans), Packed(value, spans), None, **extra)
        expected, _ = sdpa_attention_forward(Grouped(), query, key, value, seen[None, None], **extra)
        torch.testing.assert_close(found, expected)


def test_grouped_keys_are_kept_once_for_the_backward_pass() -> None:
    query, key, value = inputs(1, 6, 40)
    kept = list[Tensor]()

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        grouped_attention(Grouped(), query, key, value, None)
    held = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    repeated = HEADS * 40 * WIDTH * 8
    assert key.untyped_storage().data_ptr() in held
    assert max(held.values()) < repeated


@pytest.mark.parametrize(
    ("q_length", "kv_length", "q_offset"),
    [(4, 9, 5), (4, 4, 0), (1, 6, 5)],
)
def test_plain_causality_makes_no_mask(q_length: int, kv_length: int, q_offset: int) -> None:
    assert mask_unless_plain(2, q_length, kv_length, q_offset) is None


def test_padding_windows_and_room_for_later_tokens_make_the_mask_of_transformers() -> None:
    padding = torch.arange(9)[None] != torch.tensor([[3], [20]])
    window = sliding_window_causal_mask_function(3)
    cases: list[dict[str, Any]] = [
        {"attention_mask": padding, "mask_function": causal_mask_function},
        {"mask_function": window, "local_size": 3},
        {"q_offset": 0},  # a static cache: the columns after the queries are not there yet
        {"allow_is_causal_skip": False},
    ]
    for case in cases:
        arguments = {"batch_size": 2, "q_length": 4, "kv_length": 9, "q_offset": 5} | case
        ours = mask_unless_plain(**arguments)
        assert ours is not None
        theirs = sdpa_mask(**(arguments | {"allow_is_causal_skip": False}))
        assert theirs is not None and torch.equal(ours, theirs)


def test_model_generates_with_a_cache_as_it_did_before() -> None:
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]]) % VOCABULARY
    theirs, ours = built("qwen2"), built("qwen2")
    Network.of(ours)
    found = []
    for model in (theirs, ours):
        cache = DynamicCache()
        with torch.no_grad():
            parts = [model(input_ids=part, past_key_values=cache).logits for part in ids.split([3, 4, 1], dim=1)]
        found.append(torch.cat(parts, dim=1))
    assert theirs.config._attn_implementation == "sdpa" != ours.config._attn_implementation
    torch.testing.assert_close(found[1], found[0], atol=2e-6, rtol=2e-6)
