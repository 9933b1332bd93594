"""The formulas of what a pass keeps, against the tensors that autograd saves."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from node.fit.activations import CUDA_HEAD_BLOCKS, HEAD_BLOCKS, PassShape, head_bytes, kept_bytes, pass_shape
from node.fit.model_sizes import sizes_from
from node.kernels.head.blocks import gpu_block_shape
from node.learner.objective.alignment import Alignment
from node.learner.objective.batch import SELF, TrainingCompletion, TrainingGroup
from node.learner.objective.forward import MicroBatch, Network, completion_hidden, plan_micro_batches
from scripts.bench.common.published_shapes import SHAPES
from tests.node.fit.shapes import PLAIN, ROUND

SHAPE = PassShape(prompts=2, rows=8, prompt_tokens=24, answer_tokens=60, passes=1)


def completion(length: int) -> TrainingCompletion:
    alignment = Alignment(np.arange(length), np.zeros(length, np.float32), 0)
    return TrainingCompletion(np.arange(length) % 90, alignment, 1.0, SELF)


def saved_bytes(network: Network, shape: PassShape) -> int:
    """Returns the bytes of all tensors that a forward pass keeps for its backward pass, parameters left out."""
    known = {p.untyped_storage().data_ptr() for p in network.body.parameters()}
    storages: dict[int, int] = {}
    kept = list[Tensor]()

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            storages[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)
        return tensor

    prompts = tuple(tuple(range(shape.prompt_tokens)) for _ in range(shape.prompts))
    completions = tuple(completion(shape.answer_tokens) for _ in range(shape.rows))
    batch = MicroBatch(prompts, tuple(row * shape.prompts // shape.rows for row in range(shape.rows)), completions)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        completion_hidden(network, batch)
    return sum(storages.values())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gpt_neox"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # by peft
def test_saved_tensors_are_within_a_tenth_of_the_formula(kind: str, dtype: Any, rank: int) -> None:
    described = {
        "hidden_size": 96, "intermediate_size": 224, "num_hidden_layers": 3, "num_attention_heads": 6,
        "num_key_value_heads": 6, "head_dim": 16, "vocab_size": 100, "tie_word_embeddings": True,
    }  # fmt: skip
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **described), dtype=getattr(torch, dtype))
    model.eval()
    if rank:
        model = with_adapter(model, rank)
    sizes = sizes_from({"model_type": kind, **described}, "test")
    assert sizes is not None
    wanted = replace(PLAIN, dtype=dtype, adapter_rank=rank)
    network, formula = Network.of(model), kept_bytes(sizes, wanted, SHAPE)
    assert formula == pytest.approx(saved_bytes(dataclasses.replace(network, packs=False), SHAPE), rel=0.1)
    if network.packs:
        assert saved_bytes(network, SHAPE) <= 1.05 * formula


def with_adapter(model: Any, rank: int) -> Any:
    return get_peft_model(model, LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM")).eval()


@settings(max_examples=60, deadline=None)
@given(
    prompt=st.integers(1, 60), answer=st.integers(1, 60), size=st.integers(1, 6), groups=st.integers(1, 6),
    batch_tokens=st.integers(8, 2000),
)  # fmt: skip
def test_a_pass_holds_as_many_rows_as_the_learner_packs(
    prompt: int, answer: int, size: int, groups: int, batch_tokens: int
) -> None:
    workload = replace(
        ROUND, prompt_tokens=prompt, answer_tokens=answer, completions=size, own_groups=groups, foreign_groups=0
    )
    packed = plan_micro_batches(
        [TrainingGroup(tuple(range(prompt)), tuple(completion(answer) for _ in range(size)), size * answer, size)]
        * groups,
        batch_tokens=batch_tokens,
    )
    shape = pass_shape(workload, batch_tokens)
    tokens = [len(batch.prompts) * prompt + len(batch.completions) * answer for batch in packed]
    # A pass that begins in the middle of a group may hold one prompt more, and a row less for it.
    assert shape.rows >= max(len(batch.completions) for batch in packed) - 1
    assert shape.prompts * prompt + shape.rows * answer >= max(tokens) - prompt - answer
    assert (shape.passes == 1) == (len(packed) == 1)


def test_recomputation_keeps_a_fraction_and_chunks_keep_less() -> None:
    sizes = sizes_from(
        {"model_type": "llama", "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 24,
         "num_attention_heads": 8, "vocab_size": 1000}, "test"
    )  # fmt: skip
    assert sizes is not None
    shape = PassShape(prompts=1, rows=1, prompt_tokens=64, answer_tokens=4096, passes=1)
    whole = kept_bytes(sizes, PLAIN, shape)
    recomputed = kept_bytes(sizes, replace(PLAIN, recompute=True), shape)
    chunked = kept_bytes(sizes, replace(PLAIN, recompute=True, chunk_tokens=512), shape)
    assert chunked < recomputed < whole / 4
    assert chunked < whole / 8


def test_on_cuda_keys_and_values_under_a_mask_count_for_each_query_head_and_blocks_of_logits_as_they_are() -> None:
    """Qwen2.5-0.5B has seven query heads for each key-value head."""
    sizes = sizes_from(SHAPES["Qwen2.5-0.5B"], "test")
    assert sizes is not None
    shape = PassShape(prompts=4, rows=32, prompt_tokens=512, answer_tokens=256, passes=1)
    settings = replace(PLAIN, dtype="bfloat16")
    cpu, cuda = (kept_bytes(sizes, settings, shape, device) for device in ("cpu", "cuda"))
    repeated = 2 * 2 * shape.rows * shape.columns * (sizes.queries - sizes.keys)
    assert cuda - cpu == sizes.layers * repeated
    assert head_bytes(sizes, shape, "cuda") - head_bytes(sizes, shape, "cpu") == CUDA_HEAD_BLOCKS - HEAD_BLOCKS
    assert math.prod(gpu_block_shape(24 << 30)) * 6 <= CUDA_HEAD_BLOCKS
