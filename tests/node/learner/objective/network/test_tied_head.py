"""The gradient of a weight that head and embedding share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from node.learner.objective.forward import WHOLE, Network, PassSettings, completion_logps, plan_micro_batches
from node.learner.objective.network.tied_head import tied_embedding
from node.learner.steps.gradients import GradientAccumulator
from tests.node.learner.objective.tiny_networks import built, groups


def loss_of(network: Network, passes: PassSettings = WHOLE) -> Tensor:
    (micro_batch,) = plan_micro_batches(groups(), batch_tokens=10_000)
    return completion_logps(network, micro_batch, passes)[0].sum()


def test_share_of_the_head_is_added_before_the_layers_begin_their_backward_pass() -> None:
    model = built("qwen2")
    network = Network.of(model)
    weight = network.head.weight
    weight.grad = torch.zeros_like(weight)
    at_last_layer = list[Tensor]()
    last: Any = network.layers[-1]
    last.register_full_backward_pre_hook(lambda *_: at_last_layer.append(weight.grad.clone()))
    loss_of(network).backward()
    before_embedding = at_last_layer[0]
    assert float(before_embedding.abs().max()) > 0
    assert not weight.grad.is_sparse
    used = {i for group in groups() for i in group.prompt_ids}
    used |= {int(i) for group in groups() for c in group.completions for i in c.token_ids[:-1]}
    of_embedding = (weight.grad - before_embedding).abs().sum(1) > 0
    assert set(of_embedding.nonzero()[:, 0].tolist()) == used


def test_passes_in_bfloat16_sum_head_and_embedding_in_float32() -> None:
    exact, rounded = built("qwen2", torch.float32), built("qwen2", torch.bfloat16)
    exact.load_state_dict({name: value.float() for name, value in rounded.state_dict().items()})
    networks = Network.of(exact), Network.of(rounded)
    accumulator = GradientAccumulator(dict(rounded.named_parameters()))
    with accumulator.accumulating():
        for network in networks:
            for _ in range(3):
                loss_of(network, PassSettings(1, recompute=True, chunk_tokens=7)).backward()
    found = accumulator.gradients()["model.embed_tokens.weight"]
    expected = networks[0].head.weight.grad
    assert found.dtype == torch.float32 and expected is not None
    assert float((found - expected).norm() / expected.norm()) < 0.03


def test_embedding_is_as_before_after_a_pass_and_after_an_exception() -> None:
    model = built("qwen2")
    network = Network.of(model)
    embedding = model.get_input_embeddings()
    loss_of(network)
    assert not embedding.sparse
    embedding.register_forward_hook(_raise)
    with pytest.raises(MemoryError):
        loss_of(network)
    assert not embedding.sparse


def _raise(*_: Any) -> None:
    raise MemoryError("no memory")


def test_heads_that_share_nothing_or_are_not_trained_are_left_alone() -> None:
    untied, tied = Network.of(built("llama")), Network.of(built("qwen2"))
    assert tied_embedding(untied.body, untied.head) is None
    assert tied_embedding(tied.body, tied.head) is not None
    with torch.no_grad():
        assert tied_embedding(tied.body, tied.head) is None
    tied.head.weight.requires_grad_(False)
    assert tied_embedding(tied.body, tied.head) is None
