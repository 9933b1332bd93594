"""Passes in which completions attend by lengths, in Triton's interpreter, against those under masks.

The interpreter takes float32 beside the formats of GPUs' tensor cores, so that only the order of sums differs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from node.kernels.training import attention_by_lengths, lengths_agreement
from node.kernels.training.row_lengths import RowLengths
from node.learner.objective.forward import WHOLE, MicroBatch, Network, PassSettings, completion_logps
from node.learner.objective.network import attention
from node.learner.objective.network.attention import grouped_attention
from node.learner.objective.network.prompt_cache import Apart, PromptRows
from tests.node.learner.objective.network.test_attention import HEADS, Grouped, inputs
from tests.node.learner.objective.tiny_networks import built, completion, gradients

BATCH = MicroBatch(  # rows of one length class are not side by side by prompt
    ((1, 2, 3, 4, 5, 6, 7), (8, 9)),
    (1, 0, 1, 0),
    tuple(completion([(5 * i + row) % 23 for i in range(length)]) for row, length in enumerate((6, 5, 1, 8))),
)


@pytest.fixture(autouse=True)
def _float32_too(by_triton: None, monkeypatch: pytest.MonkeyPatch) -> None:
    formats = (*attention_by_lengths.DTYPES, torch.float32)
    monkeypatch.setattr(attention_by_lengths, "DTYPES", formats)


def learnt(network: Network, passes: PassSettings) -> tuple[Tensor, dict[str, Tensor], int]:
    """Returns log-probabilities, gradients, and the bytes that autograd kept."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logps, _ = completion_logps(network, BATCH, passes)
    (logps * torch.linspace(-1, 1, len(logps))).sum().backward()
    return logps.detach(), gradients(network.body), sum(kept.values())


@pytest.mark.parametrize("passes", [WHOLE, PassSettings(80, recompute=True, chunk_tokens=5)], ids=["whole", "pieces"])
@pytest.mark.parametrize("architecture", ["qwen2", "gpt-neox"])
def test_log_probabilities_and_gradients_are_those_under_masks(
    architecture: str, passes: PassSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = built(architecture, torch.float32)
    network = Network.of(model)
    assert network.by_lengths
    logps, found, kept = learnt(network, passes)
    monkeypatch.setattr("node.kernels.dispatch.TRITON_DEVICES", set())
    masked = replace(Network.of(model), packs=False)
    assert not masked.by_lengths
    expected_logps, expected, kept_under_masks = learnt(masked, passes)
    torch.testing.assert_close(logps, expected_logps, atol=2e-5, rtol=2e-5)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=2e-5 * float(gradient.abs().max()), rtol=2e-4)
    assert passes.recompute or kept < kept_under_masks


def test_what_the_kernels_do_not_compute_attends_to_joined_keys_under_a_mask() -> None:
    rows = RowLengths.of(torch.tensor([0, 1]), torch.tensor([3, 3]), torch.tensor([4, 2]))
    query, own_keys, own_values = inputs(2, 3, 3)
    _, prompt_keys, prompt_values = inputs(2, 3, 4)
    prompts = PromptRows(torch.tensor([0, 1]), 4, rows)
    key, value = (Apart(prompts, [p], [o]) for p, o in ((prompt_keys, own_keys), (prompt_values, own_values)))
    seen = torch.ones(2, 1, 3, 7, dtype=torch.bool).tril(4)
    seen[1, ..., 2:4] = False
    window = torch.ones(3, 7, dtype=torch.bool).triu(2)
    bias = torch.randn(1, HEADS, 3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cases: list[tuple[Tensor | None, Tensor, dict[str, Any]]] = [
        (None, seen, {"position_bias": bias}),
        (seen[:1] & window, seen & window, {}),  # a model's mask of its own knows nothing of padding
    ]
    for given, explicit, extra in cases:
        found, _ = grouped_attention(Grouped(), query, key, value, given, **extra)
        joined = (key.joined(), value.joined())
        expected, _ = sdpa_attention_forward(Grouped(), query, *joined, explicit, **extra)
        torch.testing.assert_close(found, expected)


def test_kernels_that_disagree_with_torch_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = attention_by_lengths.attend_by_lengths
    monkeypatch.setattr(lengths_agreement, "attend_by_lengths", lambda *arguments: right(*arguments).square())
    attention._agree.cache_clear()
    try:
        assert not Network.of(built("qwen2", torch.bfloat16)).by_lengths
        assert "attention by lengths differs" in caplog.text
    finally:
        attention._agree.cache_clear()


def test_windows_other_attention_and_formats_without_tensor_cores_go_by_masks() -> None:
    assert not Network.of(built("qwen3-sliding", torch.bfloat16)).by_lengths
    assert not Network.of(built("qwen2", torch.float64)).by_lengths
    eager = built("qwen2", torch.bfloat16)
    eager.config._attn_implementation = "eager"
    assert not Network.of(eager).by_lengths
