"""A model's folder that is damaged, or does not fit the machine, is refused with what is wrong and what to do."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from node.configuration import PolicySection
from node.policy.model_files import model_folder
from node.policy.policy import Policy
from protocol.errors import ConfigurationError

EMBEDDING = "model.embed_tokens.weight"


def load(folder: Path, **section: object) -> Policy:
    return Policy.load(PolicySection.model_validate({"model": str(folder), "device": "cpu", **section}))


def refusal(folder: Path) -> str:
    with pytest.raises(ConfigurationError) as refused:
        load(folder)
    assert str(folder) in str(refused.value)
    return str(refused.value)


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def shard(folder: Path) -> list[str]:
    """Spreads the weights over three files with an index. Returns their names."""
    weights = load_file(folder / "model.safetensors")
    names = [f"model-0000{index}-of-00003.safetensors" for index in (1, 2, 3)]
    places = {tensor: names[index % 3] for index, tensor in enumerate(sorted(weights))}
    for name in names:
        save_file({t: w for t, w in weights.items() if places[t] == name}, folder / name, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "model.safetensors").unlink()
    return names


def test_whole_model_in_shards_loads(copied: Path) -> None:
    whole = load(copied)
    shard(copied)
    assert load(copied).family == whole.family


def test_missing_shard_is_named(copied: Path) -> None:
    names = shard(copied)
    (copied / names[1]).unlink()
    assert names[1] in refusal(copied)


def test_shard_whose_link_leads_nowhere_is_named(copied: Path) -> None:
    """As in a hub cache whose blobs were deleted."""
    names = shard(copied)
    (copied / names[2]).unlink()
    (copied / names[2]).symlink_to(copied / "blobs" / "gone")
    assert names[2] in refusal(copied)


def test_truncated_shard_is_named_with_both_sizes(copied: Path) -> None:
    path = copied / shard(copied)[0]
    content = path.read_bytes()
    path.write_bytes(content[:-1000])
    message = refusal(copied)
    assert path.name in message
    assert f"{len(content) - 1000:,}" in message
    assert f"{len(content):,}" in message


@pytest.mark.parametrize("content", [b"", b"\x07", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]", b"version https://git-lfs"])
def test_file_that_is_not_safetensors_is_named(copied: Path, content: bytes) -> None:
    (copied / "model.safetensors").write_bytes(content)
    assert "model.safetensors" in refusal(copied)


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": []}', '{"weight_map": {"a": 3}}'])
def test_index_that_is_not_one_is_named(copied: Path, index: str) -> None:
    (copied / "model.safetensors").unlink()
    (copied / "model.safetensors.index.json").write_text(index)
    assert "model.safetensors.index.json" in refusal(copied)


def test_index_that_names_a_file_elsewhere_is_refused(copied: Path) -> None:
    (copied / "model.safetensors").rename(copied.parent / "outside.safetensors")
    (copied / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../outside.safetensors"}}')
    assert "../outside.safetensors" in refusal(copied)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", -1),
        ("num_hidden_layers", 2.5),
        ("hidden_size", 10**12),
        ("vocab_size", 0),
        ("vocab_size", "many"),
        ("max_position_embeddings", True),
        ("intermediate_size", [320, 10**9]),
    ],
)
def test_configuration_with_a_size_that_cannot_be_meant_is_refused_before_anything_is_built(
    copied: Path, key: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AutoModelForCausalLM, "from_config", None)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    change_config(copied, **{key: value})
    assert key in refusal(copied)


def test_size_in_a_part_of_the_configuration_is_bounded_too(copied: Path) -> None:
    change_config(copied, text_config={"num_hidden_layers": 10**9})
    assert "num_hidden_layers is 1000000000" in refusal(copied)


def test_more_layers_than_the_files_have_are_refused_by_both_numbers(copied: Path) -> None:
    change_config(copied, num_hidden_layers=900)
    message = refusal(copied)
    assert "900 layers" in message
    assert "3" in message


def test_sizes_that_the_files_cannot_fill_are_refused_before_memory_is_taken(copied: Path) -> None:
    change_config(copied, hidden_size=1 << 16, intermediate_size=1 << 19)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "claims" in refusal(copied)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB; it would take 1.5 TB


@pytest.mark.parametrize("content", ["not json", "[]", "3", "[" * 100_000])
def test_configuration_that_is_not_a_json_object_is_refused(copied: Path, content: str) -> None:
    (copied / "config.json").write_text(content)
    assert "config.json" in refusal(copied)


def test_configuration_without_a_model_type_is_refused(copied: Path) -> None:
    (copied / "config.json").write_text('{"r": 8}')
    assert "model_type" in refusal(copied)


def test_configuration_of_an_unknown_model_type_is_refused(copied: Path) -> None:
    change_config(copied, model_type="abacus")
    assert "abacus" in refusal(copied)


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_act", 7), ("head_dim", 7), ("pad_token_id", 10**6), ("rope_parameters", []), ("layer_types", {})],
)
def test_configuration_that_no_model_can_be_built_from_is_refused(copied: Path, key: str, value: object) -> None:
    change_config(copied, **{key: value})
    assert "does not load" in refusal(copied)


def test_model_that_is_stored_quantised_is_refused(copied: Path) -> None:
    change_config(copied, quantization_config={"quant_method": "gptq", "bits": 4})
    message = refusal(copied)
    assert "gptq" in message
    assert "four_bit" in message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weight_that_is_no_number_is_refused_with_its_tensor(copied: Path, value: float, dtype: torch.dtype) -> None:
    name = "model.layers.1.mlp.up_proj.weight"

    def damage(weights: dict[str, torch.Tensor]) -> None:
        weights[name] = weights[name].to(dtype)
        weights[name][-1, -1] = value

    change_weights(copied, damage)
    assert name in refusal(copied)


def test_missing_tensors_are_refused_instead_of_drawn_at_random(copied: Path) -> None:
    change_weights(copied, lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"))
    assert "model.layers.1.mlp.up_proj.weight" in refusal(copied)


def test_tied_head_need_not_be_in_the_files_and_an_untied_one_must(copied: Path) -> None:
    assert "lm_head.weight" not in load_file(copied / "model.safetensors")
    assert load(copied).parameters
    change_config(copied, tie_word_embeddings=False)
    assert "lm_head.weight" in refusal(copied)


def test_tensor_of_another_shape_is_refused_by_name(copied: Path) -> None:
    def widen(weights: dict[str, torch.Tensor]) -> None:
        weights[EMBEDDING] = torch.cat([weights[EMBEDDING], weights[EMBEDDING]])

    change_weights(copied, widen)
    message = refusal(copied)
    assert EMBEDDING in message
    assert "shape" in message


def test_host_that_cannot_allocate_the_weights_is_told_what_they_need(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocate(*_: Any, **__: Any) -> torch.Tensor:
        return torch.empty(1 << 60, dtype=torch.uint8)  # torch's own error, with its own words

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", allocate)
    message = refusal(copied)
    assert "529,984 weights, about 2.1 MB on the cpu (float32)" in message
    assert "starling fit" in message


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_takes_no_memory_for_a_second_copy(copied: Path) -> None:
    """64 MiB of weights, of the dtype they are used in: they stay in their file until they are written to."""
    change_config(copied, vocab_size=1 << 17)
    change_weights(copied, lambda weights: weights.update({EMBEDDING: torch.randn(1 << 17, 128)}))
    load(copied)  # what libraries allocate once
    before = anonymous_bytes()
    policy = load(copied)
    assert policy.parameters > 1 << 24
    assert anonymous_bytes() - before < 24 << 20


def anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_file_that_may_not_be_read_is_named(copied: Path, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def refuse(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.name == missing:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)  # tests may run as root, whom no mode of a file keeps out
    message = refusal(copied)
    assert missing in message
    assert "Permission denied" in message


def test_folder_behind_a_closed_door_is_refused(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(ConfigurationError, match="Permission denied"):
        model_folder(str(copied))


def test_folder_that_is_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigurationError, match="no such folder"):
        model_folder(str(tmp_path / "loop"))
