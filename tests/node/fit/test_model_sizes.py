"""Counting a model's parameters from its configuration, against transformers' own models, and refusing bad folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from node.configuration import PolicySection
from node.fit.model_sizes import KNOWN, ModelSizes, known_sizes, sizes_from
from node.policy.model_counting import counted_sizes
from node.policy.model_files import model_folder
from node.policy.policy import Policy
from protocol.errors import ConfigurationError
from scripts.bench.common.model_shapes import write_model
from scripts.bench.common.published_shapes import SHAPES, config_of
from tests.node.fit.shapes import sizes


def on_meta(config: dict[str, Any]) -> Any:
    described = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        made: Any = AutoConfig.for_model(config["model_type"], **described)
        return AutoModelForCausalLM.from_config(made)


def linear_widths(model: Any) -> int:
    head = model.get_output_embeddings().weight
    linears = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and m.weight is not head]
    return sum(m.in_features + m.out_features for m in linears)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_published_shapes_are_counted_exactly(shape: str) -> None:
    model, counted = on_meta(config_of(shape)), sizes(shape)
    assert counted.parameters == sum(p.numel() for p in model.parameters())
    assert counted.layers * counted.layer_linear_widths == linear_widths(model)
    assert counted.tied == (model.get_output_embeddings().weight is model.get_input_embeddings().weight)


@pytest.mark.parametrize("kind", sorted(KNOWN))
def test_every_known_architecture_is_counted_exactly_by_its_defaults_and_with_biases(kind: str) -> None:
    small: dict[str, Any] = {
        "model_type": kind, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
        "num_attention_heads": 6, "vocab_size": 101,
    }  # fmt: skip
    for extra in ({}, {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2, "head_dim": 16}):
        if kind == "gpt_neox" and extra:
            extra = {"attention_bias": False}
        described = small | extra
        counted = sizes_from(described, "test")
        assert counted is not None
        assert counted.parameters == sum(p.numel() for p in on_meta(described).parameters()), extra


@pytest.mark.parametrize("name", ["wren", "robin", "finch"])
def test_built_in_models_are_counted_as_they_load_whole_and_adapted(name: str) -> None:
    counted = known_sizes(model_folder(f"builtin:{name}"))
    assert counted is not None
    whole = Policy.load(PolicySection(model=f"builtin:{name}", adapter_rank=0))
    assert counted.parameters == sum(p.numel() for p in whole.trainable().values())
    adapted = Policy.load(PolicySection(model=f"builtin:{name}", adapter_rank=4))
    assert counted.adapter_parameters(4) == sum(p.numel() for p in adapted.trainable().values())
    assert counted.disk_bytes == (model_folder(f"builtin:{name}") / "model.safetensors").stat().st_size


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_folder("builtin:wren"), tmp_path / "model"))


def changed(folder: Path, **keys: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    return folder


@pytest.mark.parametrize("layers", [10**9, 0, -1, 2.5, "three", True])
def test_a_number_of_layers_that_no_model_has_is_refused_before_anything_is_counted(folder: Path, layers: Any) -> None:
    with pytest.raises(ConfigurationError, match="num_hidden_layers"):
        known_sizes(changed(folder, num_hidden_layers=layers))


def test_more_layers_than_the_files_hold_are_refused_with_both_numbers(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"claims .* weights, and the safetensors .* hold 529,984"):
        known_sizes(changed(folder, num_hidden_layers=1000))


def test_an_architecture_without_a_formula_is_counted_by_torch(folder: Path) -> None:
    config = {"model_type": "olmo", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
              "num_attention_heads": 4, "vocab_size": 50}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    assert known_sizes(folder) is None
    counted = counted_sizes(folder)
    assert isinstance(counted, ModelSizes)
    assert counted.parameters == sum(p.numel() for p in on_meta(config).parameters())


def test_a_written_shape_loads_with_as_many_weights_as_were_counted(tmp_path: Path) -> None:
    described = write_model(tmp_path / "shape", "SmolLM2-135M", layers=1)
    counted = known_sizes(described)
    assert counted is not None and counted.layers == 1
    assert counted.disk_bytes == pytest.approx(2 * counted.parameters, rel=0.01)
