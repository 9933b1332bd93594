"""A base model in 4 bits under an adapter: loaded, computed with, sampled from and trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn.modules import Linear4bit, Params4bit
from peft import PeftModel
from pydantic import ValidationError

from node.configuration import LearnerSection, PolicySection
from node.engines.engine import GenerationRequest, Sampling
from node.engines.torch import TorchEngine
from node.learner.objective.forward import Network, check_network
from node.learner.steps.optimizer import MasterAdamW
from node.policy.four_bit import check_four_bit
from node.policy.policy import Policy
from protocol.errors import ConfigurationError

IDS = torch.tensor([[3, 4, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14]])


def load(*, four_bit: bool = True, **section: object) -> Policy:
    wanted = {"model": "builtin:wren", "device": "cpu", "adapter_rank": 4, "four_bit": four_bit, **section}
    return Policy.load(PolicySection.model_validate(wanted))


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load()


def loss_of(policy: Policy) -> torch.Tensor:
    logits: torch.Tensor = policy.model(input_ids=IDS).logits
    return logits.float().logsumexp(-1).mean() - logits[..., 5].float().mean()


def exact_copy(policy: Policy) -> Policy:
    """The same policy with its 4-bit layers replaced by ordinary ones of the same, rounded weights."""
    copy = load(four_bit=False)
    weights = dict(copy.model.named_parameters())
    rounded = {n: p for n, p in policy.model.named_parameters() if isinstance(p, Params4bit)}
    assert rounded
    with torch.no_grad():
        for name, parameter in rounded.items():
            weights[name].copy_(dequantize_4bit(parameter.data, parameter.quant_state))
    return copy


def test_linear_layers_but_the_head_are_held_in_4_bits_and_the_rest_whole(policy: Policy) -> None:
    assert isinstance(policy.model, PeftModel)
    layers = [name for name, module in policy.model.named_modules() if isinstance(module, Linear4bit)]
    assert len(layers) == 3 * 7
    held = sum(p.nbytes for p in policy.model.parameters() if not p.requires_grad)
    whole = sum(p.nbytes for p in load(four_bit=False).model.parameters() if not p.requires_grad)
    assert held < whole / 6  # the embedding stays whole
    assert all("lora_" in name for name in policy.trainable())


def test_parameters_are_counted_as_those_of_the_whole_model(policy: Policy) -> None:
    whole = load(four_bit=False)
    assert policy.parameters == whole.parameters
    assert policy.adapted_parameters == whole.adapted_parameters == load(four_bit=False, adapter_rank=0).parameters
    assert load(four_bit=False, adapter_rank=0).adapted_parameters == 0


def test_4_bits_are_a_family_of_their_own(policy: Policy) -> None:
    assert policy.family == load().family
    assert policy.family != load(four_bit=False).family
    assert policy.label == "wren+qlora4"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_head_gives_the_models_own_log_probabilities(dtype: str) -> None:
    policy = load(dtype=dtype)
    check_network(policy.model, Network.of(policy.model))


def test_gradients_after_sampling_are_those_of_the_same_rounded_weights(policy: Policy) -> None:
    """bitsandbytes would repack its weights for inference at the first pass without gradients."""
    own, exact = policy.separate(), exact_copy(policy)
    torch.manual_seed(0)
    for name, parameter in own.trainable().items():  # an adapter begins at 0, and half of its gradients do
        parameter.data.copy_(torch.randn_like(parameter) * 0.05)
        exact.trainable()[name].data.copy_(parameter.data)
    with torch.inference_mode():
        sampled = loss_of(own)
    loss, expected = loss_of(own), loss_of(exact)
    torch.testing.assert_close(sampled, expected.detach(), rtol=1e-4, atol=1e-5)
    loss.backward()
    expected.backward()
    for name, parameter in own.trainable().items():
        torch.testing.assert_close(parameter.grad, exact.trainable()[name].grad, rtol=1e-3, atol=1e-5)


def test_adapter_learns_and_the_copy_that_samples_shares_the_base(policy: Policy) -> None:
    learner = policy.separate()
    shared = {p.data_ptr() for p in policy.model.parameters() if not p.requires_grad}
    assert {p.data_ptr() for p in learner.model.parameters() if not p.requires_grad} == shared
    optimizer = MasterAdamW(learner.trainable(), LearnerSection(learning_rate=1e-2))
    before = float(loss_of(learner).detach())
    for _ in range(5):
        loss_of(learner).backward()
        optimizer.step()
    assert float(loss_of(learner).detach()) < before - 0.1
    assert float(loss_of(policy).detach()) == pytest.approx(before)


def test_engine_samples_from_it(policy: Policy) -> None:
    engine = TorchEngine(policy, rows=4, seed=0)
    request = GenerationRequest((3, 4, 5), completions=4, max_new_tokens=6)
    samples = engine.generate([request], Sampling(temperature=1.0))[0]
    assert len(samples) == 4
    first = samples[0]
    ids = torch.tensor([[3, 4, 5, *first.token_ids]])
    with torch.no_grad():
        logps = policy.model(input_ids=ids).logits[0, 2:-1].log_softmax(-1)
    expected = logps.gather(-1, ids[0, 3:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(first.logps), expected, rtol=1e-3, atol=1e-3)


def test_base_in_4_bits_without_an_adapter_is_refused() -> None:
    with pytest.raises(ValidationError, match="adapter_rank"):
        PolicySection(four_bit=True, adapter_rank=0)
    with pytest.raises(ConfigurationError, match="adapter_rank, for example to 16"):
        load(adapter_rank="auto")  # which trains whole weights where nothing was planned


def test_device_that_4_bits_do_not_work_on_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the device is mps"):
        check_four_bit(4, torch.device("mps"))


def test_damaged_weights_are_refused_before_they_are_rounded(copied: Path) -> None:
    path = copied / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-2:] = b"\xff\xff"  # the last float32 becomes NaN
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="NaN"):
        load(model=str(copied))
