"""The weights that the lean decoder reads: which are copied, and how adapters are applied."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Qwen3Config

from node.engines.engine import GenerationRequest, Sample, Sampling
from node.engines.lean.architectures import architecture_of
from node.engines.lean.decoder import LeanDecoder
from node.engines.lean.projections import AdaptedProjection, DenseProjection, ModuleProjection
from node.engines.torch import TorchEngine, decoder_for
from node.policy.policy import Policy

Load = Callable[..., Policy]
ASKED = [GenerationRequest([5, 9, 3], 3, 12), GenerationRequest([7] * 11, 3, 12)]


def lean(policy: Policy, **options: Any) -> LeanDecoder:
    decoder = decoder_for(policy, **options)
    assert isinstance(decoder, LeanDecoder)
    return decoder


def adapted(load_policy: Load, name: str, **section: object) -> Policy:
    """A policy whose adapter does something: as created, its B is zero."""
    policy = load_policy(name, adapter_rank=4, **section)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.dtype), alpha=0.1)
    return policy


def agrees(policy: Policy, given: list[list[Sample]], atol: float = 1e-4) -> None:
    for request, samples in zip(ASKED, given, strict=True):
        for sample in samples:
            tokens = sample.token_ids.tolist()
            with torch.no_grad():
                logits = policy.model(torch.tensor([[*request.prompt_ids, *tokens]])).logits
            expected = torch.log_softmax(logits[0, len(request.prompt_ids) - 1 : -1].float(), -1)
            np.testing.assert_allclose(sample.logps, expected[range(len(tokens)), tokens], atol=atol)


@pytest.mark.parametrize("name", ["qwen3", "llama", "qwen2", "neox"])
@pytest.mark.parametrize("merge", [True, False])
def test_adapter_beside_a_matrix_and_merged_into_it_give_the_models_own_logits(
    load_policy: Load, name: str, merge: bool
) -> None:
    policy = adapted(load_policy, name)
    engine = TorchEngine(policy, rows=8, seed=0, merge_adapters=merge)
    kinds = {type(layer.down) for layer in engine._decoder._weights.layers}  # type: ignore[attr-defined]
    assert kinds == {DenseProjection if merge else AdaptedProjection}
    agrees(policy, engine.generate(ASKED, Sampling(seed=0)))


@pytest.mark.parametrize("merge", [True, False])
def test_adapter_in_bfloat16_agrees_within_its_rounding(load_policy: Load, merge: bool) -> None:
    policy = adapted(load_policy, "qwen3", dtype="bfloat16")
    engine = TorchEngine(policy, rows=8, seed=0, merge_adapters=merge, shared_prompts=True)
    agrees(policy, engine.generate(ASKED, Sampling(seed=0)), atol=0.25)


def test_only_queries_keys_and_values_are_copied_and_everything_else_is_the_models_own(load_policy: Load) -> None:
    policy = load_policy("llama")
    decoder = lean(policy)
    assert decoder.copied_bytes == decoder.attention_shape.packed_bytes
    live = {parameter.data_ptr() for parameter in policy.model.parameters()}
    weights = decoder._weights
    assert weights.embedding.data_ptr() in live
    for layer in weights.layers:
        for projection in (layer.attention_output, layer.up, layer.down):
            assert isinstance(projection, DenseProjection)
            assert projection.weight.data_ptr() in live


@pytest.mark.parametrize(("adapter_rank", "merge"), [(0, True), (4, True), (4, False)])
def test_refresh_writes_into_the_copies_that_there_are(load_policy: Load, adapter_rank: int, merge: bool) -> None:
    policy = load_policy("qwen3", adapter_rank=adapter_rank)
    decoder = lean(policy, merge_adapters=merge)
    copies = {name: copy.data_ptr() for name, copy in decoder._packer._copies.items()}
    first = decoder._packer._copies["0.queries keys values"].clone()
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.01)
    decoder.refresh()
    assert {name: copy.data_ptr() for name, copy in decoder._packer._copies.items()} == copies
    assert not torch.equal(decoder._packer._copies["0.queries keys values"], first)


def test_adapter_that_is_not_merged_copies_no_more_than_its_own_weights(load_policy: Load) -> None:
    whole = lean(load_policy("qwen3")).copied_bytes
    policy = load_policy("qwen3", adapter_rank=4)
    beside, merged = (lean(policy, merge_adapters=merge).copied_bytes for merge in (False, True))
    assert beside - whole <= sum(parameter.nbytes for parameter in policy.trainable().values()) * 3
    assert merged > 1.5 * whole


class CoarseLinear(nn.Linear):
    """Computes with eighths of its weights, as a quantised layer computes with others than ``weight`` says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, (self.weight * 8).round() / 8, self.bias)


@pytest.mark.parametrize(("name", "adapter_rank"), [("qwen3", 0), ("qwen2", 0), ("neox", 0), ("qwen3", 4)])
def test_layer_that_is_no_plain_matrix_computes_by_its_own_forward(
    load_policy: Load, name: str, adapter_rank: int
) -> None:
    policy = adapted(load_policy, name) if adapter_rank else load_policy(name)
    exact = TorchEngine(policy, rows=8, seed=0).generate(ASKED, Sampling(seed=0))
    layers = policy.base.get_submodule("gpt_neox.layers" if name == "neox" else "model.layers")
    for module in layers.modules():
        if type(module) is nn.Linear and "lora" not in str(type(module)):
            module.__class__ = CoarseLinear
    engine = TorchEngine(policy, rows=8, seed=0, merge_adapters=True, shared_prompts=True)
    assert isinstance(engine._decoder._weights.layers[0].down, ModuleProjection)  # type: ignore[attr-defined]
    given = engine.generate(ASKED, Sampling(seed=0))
    agrees(policy, given)
    assert not np.array_equal(given[0][0].logps, exact[0][0].logps)


def test_matrices_of_four_bits_with_adapters_beside_them_give_the_models_own_logits(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    config = Qwen3Config(vocab_size=40, num_hidden_layers=2, head_dim=16, max_position_embeddings=64, **sizes)
    four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    loader: Any = AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        loader.from_config(config).save_pretrained(tmp_path)
    base = loader.from_pretrained(tmp_path, dtype=torch.float32, quantization_config=four_bits)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        model: Any = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
    architecture = architecture_of(base.config)
    assert architecture is not None
    decoder = LeanDecoder(base, architecture, shared_prompts=True)
    prompt, tokens = [3, 4, 5, 6, 7], torch.tensor([8, 9, 10])
    with torch.inference_mode():
        decoder.begin(3, [3], len(prompt), 4)
        decoder.join(decoder.prefill([prompt], [3]), [0, 0, 0])
        given = decoder.step(tokens)
        expected = model(torch.tensor([[*prompt, token] for token in tokens.tolist()])).logits[:, -1]
    torch.testing.assert_close(torch.log_softmax(given, -1), torch.log_softmax(expected, -1), atol=1e-3, rtol=0)
