"""Log-probabilities in bfloat16 against float64: logits and key biases as large as those of trained models.

Two layers of each published shape have weights of variance 1/width, and a final norm that gives logits a deviation of 4
nats, so that they reach 16 to 20. bfloat16 keeps 8 bits: one rounding of a hidden state, of relative error 2⁻⁹ in each
component, moves a logit by about 4 · 2⁻⁹ nats, and independent roundings add up in squares. No implementation avoids
those of weights' products, so that the learner must not lose more than transformers' own forward pass does.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from node.learner.objective.alignment import Alignment
from node.learner.objective.batch import SELF, TrainingCompletion
from node.learner.objective.forward import MicroBatch, Network, check_network, completion_logps
from protocol.errors import ConfigurationError
from scripts.bench.common.published_shapes import SHAPES, config_of

VOCABULARY, PROMPT, ANSWER = 500, 16, 96
DEVIATION = 4.0  # of logits, in nats
ROUNDED = DEVIATION * 2**-9 * math.sqrt(2 * 24)  # of some 24 in two layers, in a logit and in the sum
QWEN = "Qwen2.5-0.5B"  # whose keys have biases


def trained_size(shape: str, key_bias: float) -> Any:
    """Returns a model in float64 whose weights are numbers of bfloat16."""
    settings = dict(config_of(shape, layers=2)) | {"vocab_size": VOCABULARY}
    settings["intermediate_size"] //= 8
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), dtype=torch.float32)
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=draws)
            if parameter.ndim > 1:
                parameter.copy_((drawn / math.sqrt(parameter.shape[-1])).bfloat16())
            elif name.endswith("k_proj.bias"):
                parameter.copy_((key_bias * drawn).clamp(-150, 150).bfloat16())
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        *_, norm = (p for name, p in model.named_parameters() if "norm.weight" in name and "layers." not in name)
        logits = model(input_ids=torch.randint(VOCABULARY, (1, 64), generator=draws)).logits
        norm.fill_(DEVIATION / float(logits.std())).copy_(norm.bfloat16())
    return to(model.eval(), torch.float64)


def to(model: Any, dtype: torch.dtype) -> Any:
    """Converts the weights alone, as loading does: the rotation's frequencies stay in float32."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


@pytest.mark.parametrize(("shape", "key_bias"), [*((shape, 0.0) for shape in SHAPES), (QWEN, 50.0)])
@torch.no_grad()
def test_the_learner_loses_no_more_in_bfloat16_than_transformers_and_nothing_in_float32(
    shape: str, key_bias: float
) -> None:
    draws = np.random.default_rng(0)
    prompt, answer = (draws.integers(0, VOCABULARY, length) for length in (PROMPT, ANSWER))
    ids = torch.tensor([[*prompt.tolist(), *answer.tolist()]])
    completion = TrainingCompletion(answer, Alignment(np.arange(ANSWER), np.zeros(ANSWER, np.float32), 0), 1.0, SELF)
    batch = MicroBatch((tuple(prompt.tolist()),), (0,), (completion,))
    model = trained_size(shape, key_bias)

    def of_transformers() -> Tensor:
        logits = model(input_ids=ids).logits[0, PROMPT - 1 : -1].double()
        return logits.log_softmax(-1).gather(1, ids[0, PROMPT:, None])[:, 0]

    def ours() -> Tensor:
        return completion_logps(Network.of(model), batch)[0].double()

    exact = of_transformers()
    assert float(exact.std()) > 3.0, "logits as trained models have them"
    to(model, torch.bfloat16)
    theirs_apart, ours_apart = ((found() - exact).abs().mean() for found in (of_transformers, ours))
    assert 0.0 < ours_apart <= 1.02 * theirs_apart
    assert key_bias or ours_apart <= ROUNDED
    to(model, torch.float32)
    assert float((ours() - exact).abs().max()) <= (1e-3 if key_bias else 1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_check_accepts_every_shape_in_both_short_formats_and_refuses_wrong_ones(shape: str) -> None:
    model = trained_size(shape, 0.0)
    for dtype in (torch.bfloat16, torch.float16):
        to(model, dtype)
        network = Network.of(model)
        check_network(model, network)
        permuted = copy.deepcopy(network.head)
        permuted.weight = torch.nn.Parameter(network.head.weight.roll(1, dims=0))
        without_norm: Any = copy.copy(network.body)
        (norm,) = (name for name in network.body._modules if name.endswith("norm"))
        without_norm._modules = {**network.body._modules, norm: torch.nn.Identity()}
        for wrong in (replace(network, head=permuted), replace(network, body=without_norm)):
            with pytest.raises(ConfigurationError, match="cannot be trained"):
                check_network(model, wrong)
