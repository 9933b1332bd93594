"""Layers recomputed in chunks against the plain pass: same log-probabilities, same gradients, less memory."""

from __future__ import annotations

import gc
import warnings
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from node.learner.objective.forward import (
    WHOLE,
    MicroBatch,
    Network,
    PassSettings,
    completion_logps,
    plan_micro_batches,
)
from node.learner.objective.network.prompt_cache import PassCache
from node.learner.objective.network.recomputation import recomputed_layers
from protocol.errors import ConfigurationError
from tests.node.learner.objective.tiny_networks import ARCHITECTURES, built, completion, gradients, groups

CHUNKS = [None, 3, 20]  # 3 cuts rows, 20 takes several rows together, and neither divides
TOLERANCE = 2e-6  # in float64, where the models compute norms and rotations in float32 all the same


def adapted(model: Any) -> Any:
    adapter = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    with warnings.catch_warnings():
        # peft uses a name that transformers has since changed
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        adapted_model = get_peft_model(model, adapter, autocast_adapter_dtype=False).eval()
    for name, parameter in adapted_model.named_parameters():
        if "lora_B" in name:  # zero at first: nothing would flow back to lora_A
            torch.nn.init.normal_(parameter, std=0.1)
    return adapted_model


def learnt(model: Any, passes: PassSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns log-probabilities and gradients of groups with prompts of unequal length, in a few micro-batches."""
    network, found = Network.of(model), list[Tensor]()
    for micro_batch in plan_micro_batches(groups(), batch_tokens=80, pads_prompts=network.pads_prompts):
        logps, _ = completion_logps(network, micro_batch, passes)
        (logps * torch.linspace(-1, 1, len(logps), dtype=logps.dtype)).sum().backward()
        found.append(logps.detach())
    return torch.cat(found), gradients(model)


@pytest.mark.parametrize("chunk_tokens", CHUNKS)
@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_recomputed_chunks_give_the_log_probabilities_and_gradients_of_the_plain_pass(
    architecture: str, lora: bool, chunk_tokens: int | None
) -> None:
    model = adapted(built(architecture)) if lora else built(architecture)
    expected_logps, expected = learnt(model, WHOLE)
    logps, found = learnt(model, PassSettings(80, recompute=True, chunk_tokens=chunk_tokens))
    torch.testing.assert_close(logps, expected_logps, atol=TOLERANCE, rtol=TOLERANCE)
    assert found.keys() == expected.keys()
    assert len(found) > 4 and all(float(gradient.abs().max()) > 0 for gradient in found.values())
    for name, gradient in expected.items():
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(found[name], gradient, atol=TOLERANCE * scale, rtol=TOLERANCE)


def long_pass(model: Any) -> tuple[Network, MicroBatch]:
    return Network.of(model), MicroBatch(((1, 2, 3, 4, 5),), (0,), (completion([i % 7 for i in range(56)]),))


def saved_bytes(network: Network, micro_batch: MicroBatch, passes: PassSettings) -> int:
    """Returns the bytes of distinct storage, but for weights, that autograd keeps for the backward pass."""
    weights = {p.untyped_storage().data_ptr() for p in (*network.body.parameters(), *network.head.parameters())}
    kept: dict[int, int] = {}  # what is kept is not freed, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logps, _ = completion_logps(network, micro_batch, passes)
    assert logps.requires_grad
    return sum(size for address, size in kept.items() if address not in weights)


@pytest.mark.parametrize("architecture", ["qwen2", "gpt-neox"])
def test_recomputation_keeps_a_fraction_of_what_the_plain_pass_keeps(architecture: str) -> None:
    network, micro_batch = long_pass(built(architecture, torch.float32))
    network = replace(network, packs=False)  # as for rows that are so long that this matters
    plain = saved_bytes(network, micro_batch, WHOLE)
    recomputed = saved_bytes(network, micro_batch, PassSettings(80, recompute=True, chunk_tokens=16))
    hidden_states = 56 * 32 * 4 * len(network.layers)
    assert hidden_states < recomputed < plain / 3  # what enters each layer is kept, and little else


def test_peak_of_the_backward_pass_is_one_chunk_of_one_layer() -> None:
    """Layers are recomputed one chunk at a time, the last chunk of the last layer first."""
    model = built("qwen2")
    network, micro_batch = long_pass(model)
    order = list[tuple[int, int]]()
    for index, layer in enumerate(network.layers):
        mlp: Any = layer.mlp
        mlp.register_forward_pre_hook(lambda _m, inputs, index=index: order.append((index, inputs[0].shape[1])))
    logps, _ = completion_logps(network, micro_batch, PassSettings(80, recompute=True, chunk_tokens=20))
    forward, order[:] = list(order), []
    assert forward == [(0, 5), (1, 5), (0, 20), (0, 20), (0, 15), (1, 20), (1, 20), (1, 15)]
    logps.sum().backward()
    assert order == [(1, 15), (1, 20), (1, 20), (0, 15), (0, 20), (0, 20), (1, 5), (0, 5)]


def test_gradients_of_a_layer_are_complete_for_a_chunk_before_an_earlier_layer_is_computed_again() -> None:
    """autograd alone would keep a second set of all gradients until the prompts' backward pass."""
    model = built("qwen2")
    network, micro_batch = long_pass(model)
    last = network.layers[-1].get_parameter("mlp.down_proj.weight")
    logps, _ = completion_logps(network, micro_batch, PassSettings(80, recompute=True, chunk_tokens=20))
    norms = list[float]()
    first: Any = network.layers[0]
    first.mlp.register_forward_pre_hook(lambda *_: norms.append(0.0 if last.grad is None else float(last.grad.norm())))
    logps.sum().backward()
    assert last.grad is not None
    assert len(norms) == 4 and min(norms) > 0.5 * float(last.grad.norm())


def test_layers_are_as_before_after_a_pass_and_after_an_exception() -> None:
    model = built("llama")
    network, micro_batch = long_pass(model)
    passes = PassSettings(80, recompute=True, chunk_tokens=8)
    own: Any = network.layers[0].forward  # as a library that wraps methods of modules leaves it
    network.layers[0].forward = lambda *args, **kwargs: own(*args, **kwargs)
    before = [dict(vars(layer)) for layer in network.layers]
    completion_logps(network, micro_batch, passes)
    assert [dict(vars(layer)) for layer in network.layers] == before
    handle = network.layers[1].mlp.register_forward_hook(_raise)  # type: ignore[union-attr]
    with pytest.raises(MemoryError):
        completion_logps(network, micro_batch, passes)
    handle.remove()
    assert [dict(vars(layer)) for layer in network.layers] == before
    assert completion_logps(network, micro_batch, WHOLE)[0].requires_grad


def _raise(*_: Any) -> None:
    raise MemoryError("no memory")


def test_pass_that_is_given_up_before_its_backward_pass_is_freed() -> None:
    model = built("llama")
    network, micro_batch = long_pass(model)
    entered = list[Any]()
    for layer in network.layers:
        layer.register_forward_hook(lambda _m, _a, output: entered.append(weakref.ref(output)))
    logps, entropies = completion_logps(network, micro_batch, PassSettings(80, recompute=True, chunk_tokens=8))
    assert len(entered) == 4 and any(each() is not None for each in entered)
    del logps, entropies
    gc.collect()
    assert all(each() is None for each in entered)


def test_layer_that_takes_what_cannot_be_cut_is_refused_with_a_remedy() -> None:
    model = built("llama")
    cache = PassCache()
    layers = Network.of(model).layers
    with (
        recomputed_layers(layers, cache, chunk_tokens=2),
        pytest.raises(ConfigurationError, match=r"alibi.*learner\.recompute"),
    ):
        layers[0](torch.zeros(1, 4, 32), past_key_values=cache, alibi=torch.zeros(1, 4))
    with (
        recomputed_layers(layers, cache, chunk_tokens=2),
        pytest.raises(ConfigurationError, match=r"cache.*learner\.recompute"),
    ):
        layers[0](torch.zeros(1, 4, 32), past_key_values=None)
