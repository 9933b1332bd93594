from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from node.configuration import PolicySection
from node.policy.base_weights import base_weights_digest
from node.policy.first_factors import is_first_factor
from node.policy.policy import Policy
from protocol.errors import ConfigurationError


def load(folder: Path, **section: object) -> Policy:
    return Policy.load(PolicySection.model_validate({"model": str(folder), "device": "cpu", **section}))


@pytest.fixture
def copied(model_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a model's folder, to be damaged."""
    return Path(shutil.copytree(model_folder("llama"), tmp_path / "copied"))


def test_policy_from_a_folder_trains_every_weight_in_evaluation_mode(load_policy: Callable[..., Policy]) -> None:
    policy = load_policy("qwen3")
    names = [name for name, _ in policy.model.named_parameters()]
    assert list(policy.trainable()) == names
    assert not policy.model.training
    assert policy.vocabulary == policy.tokens.vocabulary == 40
    assert policy.base is policy.model
    assert len(policy.family) == 16


def test_adapter_trains_only_itself_and_begins_as_the_base_model(load_policy: Callable[..., Policy]) -> None:
    base, adapted = load_policy("qwen3"), load_policy("qwen3", adapter_rank=2)
    assert adapted.trainable()
    assert all("lora_" in name for name in adapted.trainable())
    assert adapted.label == base.label + "+lora2"
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        assert torch.equal(base.model(ids).logits, adapted.model(ids).logits)


def test_adapters_of_one_family_begin_with_one_a_and_leave_the_global_generator_alone(
    model_folder: Callable[[str], Path],
) -> None:
    section = PolicySection(model=str(model_folder("llama")), adapter_rank=2)
    before = torch.random.get_rng_state()
    first = Policy.load(section)
    torch.manual_seed(99)  # another machine's
    again, other = Policy.load(section), Policy.load(section.model_copy(update={"adapter_rank": 3}))
    torch.random.set_rng_state(before)
    assert all(torch.equal(tensor, again.trainable()[name]) for name, tensor in first.trainable().items())
    factors = {name: tensor.detach() for name, tensor in first.trainable().items() if is_first_factor(name)}
    assert 2 * len(factors) == len(first.trainable())
    assert len({float(tensor[0, 0]) for tensor in factors.values()}) == len(factors), "each matrix has its own"
    for name, tensor in factors.items():
        assert not torch.equal(tensor, other.trainable()[name][:2]), "another family has another"
        bound = tensor.shape[1] ** -0.5
        assert 0.8 * bound < float(tensor.abs().max()) <= bound
        assert abs(float(tensor.mean())) < 0.3 * bound


def test_family_survives_training_and_dtype_but_not_another_model_adapter_or_base(
    load_policy: Callable[..., Policy], copied: Path
) -> None:
    policy = load_policy("llama")
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(1.0)
    same = [load_policy("llama"), load_policy("llama", dtype="bfloat16"), load(copied)]
    assert {other.family for other in same} == {policy.family}
    weights = load_file(copied / "model.safetensors")
    weights["model.norm.weight"][0] += 1e-3
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    different = [
        load_policy("qwen2"),
        load_policy("llama", adapter_rank=2),
        load_policy("llama", adapter_rank=3),
        load(copied),
    ]
    assert len({policy.family, *(other.family for other in different)}) == len(different) + 1


def test_family_ignores_paths_and_library_version_but_not_what_the_model_computes(copied: Path) -> None:
    family = load(copied).family
    path = copied / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"transformers_version": "4.0.0", "_name_or_path": "/elsewhere"}))
    assert load(copied).family == family
    path.write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    assert load(copied).family != family


def test_digest_of_base_weights_does_not_depend_on_how_they_are_spread_over_files(copied: Path) -> None:
    whole = base_weights_digest(copied)
    weights = load_file(copied / "model.safetensors")
    names = sorted(weights)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, members in shards.items():
        save_file({name: weights[name] for name in members}, copied / shard, metadata={"format": "pt"})
    weight_map = {name: shard for shard, members in shards.items() for name in members}
    (copied / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map, "metadata": {}}))
    (copied / "model.safetensors").unlink()
    assert base_weights_digest(copied) == whole
    assert load(copied).family


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("builtin:dodo", "wren"),
        ("/no/such/folder", "/no/such/folder"),
        ("nobody", "builtin:NAME"),
    ],
)
def test_model_that_does_not_exist_is_named_with_the_remedy(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Policy.load(PolicySection(model=name))


def test_hub_id_without_a_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigurationError, match="HF_HUB_OFFLINE"):
        Policy.load(PolicySection(model="nobody/nothing"))


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_folder_that_lacks_a_file_is_refused_by_the_name_of_that_file(copied: Path, missing: str) -> None:
    (copied / missing).unlink()
    with pytest.raises(ConfigurationError, match=missing):
        load(copied)


@pytest.mark.parametrize("damaged", ["config.json", "tokenizer.json", "model.safetensors"])
def test_damaged_file_is_a_configuration_error(copied: Path, damaged: str) -> None:
    (copied / damaged).write_bytes(b"\x80" + (copied / damaged).read_bytes()[: 1 << 10])
    with pytest.raises(ConfigurationError, match=str(copied)):
        load(copied)


def test_weights_that_lack_a_tensor_are_refused_instead_of_drawn_at_random(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigurationError, match=r"1 tensors, .*model\.layers\.1\.mlp\.up_proj"):
        load(copied)


def test_device_that_this_machine_lacks_is_refused(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigurationError, match=r"policy\.device"):
        load(model_folder("llama"), device="cuda")
