"""The shared-prefix forward pass against plain full sequences: same log-probabilities, same gradients."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from node.configuration import ObjectiveSection, PolicySection
from node.learner.objective.batch import RaggedSpans, TrainingGroup
from node.learner.objective.forward import (
    MicroBatch,
    Network,
    check_network,
    completion_logps,
    plan_micro_batches,
    rows_by_length,
)
from node.learner.objective.loss import BatchTotals, objective_loss
from node.policy.policy import Policy
from protocol.errors import ConfigurationError
from tests.node.learner.objective.tiny_networks import ARCHITECTURES, built, completion, gradients, groups

PACKED = tuple(each for each in ARCHITECTURES if each != "qwen3-sliding")  # a window counts what lies between

# The models compute their norms and rotations in float32 even when they are float64: hence 2e-6 there, not 1e-12.


def plain_logps(model: Any, prompt: Sequence[int], ids: Sequence[int]) -> Tensor:
    """(T,) by one full forward pass of prompt and completion, no cache, no padding."""
    row = torch.tensor([[*prompt, *ids]])
    logits = model(input_ids=row).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids)[:, None])[:, 0]


@pytest.mark.parametrize(
    ("architecture", "packs"), [(each, packs) for each in ARCHITECTURES for packs in {False, each in PACKED}]
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 2e-6), (torch.float32, 1e-5)])
def test_shared_prefix_gives_the_log_probabilities_and_gradients_of_full_sequences(
    architecture: str, packs: bool, dtype: torch.dtype, tolerance: float
) -> None:
    model = built(architecture, dtype)
    network = Network.of(model)
    assert network.packs is (architecture in PACKED)
    network = replace(network, packs=packs)
    micro_batches = plan_micro_batches(groups(), batch_tokens=10_000, pads_prompts=network.pads_prompts)
    assert sum(len(each.completions) for each in micro_batches) == 12
    expected_logps, shared_logps = [], []
    for micro_batch in micro_batches:
        for index, each in zip(micro_batch.prompt_of, micro_batch.completions, strict=True):
            logps = plain_logps(model, micro_batch.prompts[index], each.token_ids.tolist())
            (logps * each.advantage).sum().backward()
            expected_logps.append(logps.detach())
    expected = gradients(model)
    for micro_batch in micro_batches:
        logps, _ = completion_logps(network, micro_batch)
        shared_logps.append(logps.detach())
        advantages = torch.cat(
            [torch.full((len(c.token_ids),), c.advantage, dtype=torch.float64) for c in micro_batch.completions]
        )
        (logps * advantages).sum().backward()
    torch.testing.assert_close(torch.cat(shared_logps), torch.cat(expected_logps), atol=tolerance, rtol=tolerance)
    shared = gradients(model)
    assert shared.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(shared[name], gradient, atol=tolerance * max(scale, 1.0), rtol=tolerance)


def loss_gradients(model: Any, micro_batches: Sequence[MicroBatch], tokens: int) -> tuple[float, dict[str, Tensor]]:
    network, total = Network.of(model), 0.0
    for micro_batch in micro_batches:
        logps, entropies = completion_logps(network, micro_batch)
        spans = RaggedSpans.of(micro_batch.completions)
        loss, _ = objective_loss(logps, entropies, spans, ObjectiveSection(), BatchTotals(tokens, 1, 1))
        loss.backward()
        total += loss.item()
    return total, gradients(model)


def test_gradient_accumulated_over_small_micro_batches_is_that_of_one_large_batch() -> None:
    model = built("qwen3")
    batch = groups(seed=1, prompts=6)
    tokens = sum(g.tokens for g in batch)
    whole, small = plan_micro_batches(batch, batch_tokens=10_000), plan_micro_batches(batch, batch_tokens=40)
    assert len(whole) == 1
    assert len(small) > 3
    loss, expected = loss_gradients(model, whole, tokens)
    small_loss, accumulated = loss_gradients(model, small, tokens)
    assert small_loss == pytest.approx(loss, rel=1e-6)
    for name, gradient in expected.items():
        torch.testing.assert_close(accumulated[name], gradient, atol=1e-9, rtol=1e-6)


def test_micro_batches_stay_within_the_bound_and_lose_no_completion() -> None:
    batch = groups(seed=2, prompts=20, completions=5)
    micro_batches = plan_micro_batches(batch, batch_tokens=60)
    for micro_batch in micro_batches:
        rows = [len(c.token_ids) for c in micro_batch.completions]
        prompts = [len(p) for p in micro_batch.prompts]
        assert len(rows) == 1 or len(prompts) * max(prompts) + len(rows) * max(rows) <= 60
    planned = {id(c) for micro_batch in micro_batches for c in micro_batch.completions}
    assert planned == {id(c) for g in batch for c in g.completions}
    for micro_batch in micro_batches:  # each completion still follows the prompt of its own group
        for index, each in zip(micro_batch.prompt_of, micro_batch.completions, strict=True):
            assert any(each in g.completions and g.prompt_ids == micro_batch.prompts[index] for g in batch)


def test_completion_over_the_bound_gets_a_micro_batch_of_its_own() -> None:
    group = TrainingGroup((1, 2, 3), (completion([1] * 30), completion([2])), 31, 2)
    micro_batches = plan_micro_batches([group], batch_tokens=10)
    assert sorted(len(each.completions) for each in micro_batches) == [1, 1]


def test_prompts_of_unlike_length_share_no_micro_batch_where_a_sliding_window_counts_padding() -> None:
    micro_batches = plan_micro_batches(groups(prompts=12), batch_tokens=10_000, pads_prompts=False)
    assert all(len({len(p) for p in micro_batch.prompts}) == 1 for micro_batch in micro_batches)


def test_temperature_scales_the_logits() -> None:
    model = built("gpt-neox")
    micro_batch = plan_micro_batches(groups(prompts=1, completions=1), batch_tokens=1000)[0]
    prompt, ids = micro_batch.prompts[0], micro_batch.completions[0].token_ids.tolist()
    logits = model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1] / 0.7
    expected = torch.log_softmax(logits, -1)
    logps, entropies = completion_logps(Network.of(model), micro_batch, temperature=0.7)
    torch.testing.assert_close(logps, expected.gather(-1, torch.tensor(ids)[:, None])[:, 0])
    torch.testing.assert_close(entropies, -(expected.exp() * expected).sum(-1))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_network_check_passes_for_architectures_that_are_computed_correctly(architecture: str, recompute: bool) -> None:
    model = built(architecture, torch.float32)
    check_network(model, Network.of(model), recompute=recompute)


@pytest.mark.parametrize(
    ("dtype", "recompute"), [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float16, False)]
)
@pytest.mark.parametrize("name", ["wren", "robin", "finch"])
def test_network_check_passes_for_trained_models_in_short_formats_and_refuses_a_permuted_head(
    name: str, dtype: torch.dtype, recompute: bool
) -> None:
    model = Policy.load(PolicySection(model=f"builtin:{name}", dtype="float32", device="cpu")).model
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    network = Network.of(model)
    check_network(model, network, recompute=recompute)
    permuted = copy.deepcopy(network.head)
    permuted.weight = torch.nn.Parameter(network.head.weight.roll(1, dims=0))
    with pytest.raises(ConfigurationError, match="cannot be trained"):
        check_network(model, replace(network, head=permuted), recompute=recompute)


def test_network_check_refuses_recomputation_of_a_model_whose_layers_are_not_all_known() -> None:
    model = built("llama", torch.float32)
    network = Network.of(model)
    check_network(model, replace(network, layers=network.layers[:1]))
    with pytest.raises(ConfigurationError, match=r"1 of the 2 layers.*learner\.recompute"):
        check_network(model, replace(network, layers=network.layers[:1]), recompute=True)


def test_network_check_refuses_a_model_that_scales_its_logits_after_the_head() -> None:
    model = built("llama", torch.float32)
    model.lm_head.register_forward_hook(lambda _module, _inputs, logits: 30 * torch.tanh(5 * logits))
    with pytest.raises(ConfigurationError, match="cannot be trained"):
        check_network(model, Network.of(model))


def test_rows_of_one_batch_are_of_similar_length_and_none_is_lost() -> None:
    lengths = [1, 9, 2, 3, 32, 17, 5, 1, 16, 4]
    batches = rows_by_length(lengths)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        behind = [lengths[row] - 1 for row in batch]
        assert max(behind) < 2 * min(behind) or max(behind) == 0
