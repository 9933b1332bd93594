"""What is exported loads elsewhere and answers as the policy does."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from node.configuration import PolicySection
from node.export import whole_model
from node.export.base_model import families_in
from node.policy.four_bit import keep_differentiable
from node.policy.loading import load_base
from node.policy.policy import Policy
from protocol.errors import ConfigurationError, StorageError
from tests.node.engines.conftest import CONFIGURATIONS
from tests.node.export.trained_run import PROMPT, TrainedRun, make_model, trained_run

CLOSE = 1e-4  # of logits, which an adapter and its base make in another order


@pytest.fixture
def run(tmp_path: Path) -> TrainedRun:
    return trained_run(tmp_path)


def logits_of(folder: Path, loader: Any = AutoModelForCausalLM) -> torch.Tensor:
    model = loader.from_pretrained(folder, local_files_only=True).eval()
    with torch.no_grad():
        found: torch.Tensor = model(PROMPT).logits
        return found


@pytest.mark.parametrize("name", ["qwen3", "neox"])  # tied and untied head
def test_exported_model_answers_as_the_policy_does_to_the_bit(tmp_path: Path, name: str) -> None:
    run, out = trained_run(tmp_path, name), tmp_path / "out"
    result = run.export(out)
    assert torch.equal(logits_of(out), run.logits())
    assert (result.form, result.round, result.replicas, result.warnings) == ("model", 8, 1, ())
    assert result.size_bytes == sum(path.stat().st_size for path in out.iterdir())
    for copied in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (out / copied).read_bytes() == (run.model / copied).read_bytes()
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer("!").input_ids == [2]
    turns = [{"role": "user", "content": "%&"}]
    asked: Any = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    assert asked == run.policy.tokens.prompt_ids("%&")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_model_trained_in_bfloat16_is_exported_from_its_float32_masters_in_the_dtype_of_its_files(
    tmp_path: Path,
) -> None:
    run = trained_run(tmp_path, dtype="bfloat16")
    before = run.policy.trainable()["model.norm.weight"].detach().float()
    run.checkpoint(9, beyond=1e-5)
    run.export(tmp_path / "out")
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as tensors:
        exported = tensors.get_tensor("model.norm.weight")
    assert exported.dtype == torch.float32
    torch.testing.assert_close(exported, before + 1e-5, rtol=0, atol=1e-7)
    assert not torch.equal(exported, exported.bfloat16().float())


def test_large_model_is_written_in_shards_with_an_index_as_vllm_reads_it(
    tmp_path: Path, run: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_model, "SHARD_BYTES", 20_000)
    out = tmp_path / "out"
    run.export(out)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    shards = sorted(path.name for path in out.glob("*.safetensors"))
    assert len(shards) > 1
    assert set(index["weight_map"].values()) == set(shards)
    assert json.loads((out / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]
    assert torch.equal(logits_of(out), run.logits())


@pytest.mark.parametrize("name", ["qwen3", "neox"])
def test_adapter_alone_answers_on_its_base_model_as_the_policy_does(tmp_path: Path, name: str) -> None:
    run, out = trained_run(tmp_path, name, adapter_rank=3), tmp_path / "out"
    result = run.export(out)
    assert result.form == "adapter"
    config = json.loads((out / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 3, 6)
    assert config["base_model_name_or_path"] == str(run.model)
    with safe_open(out / "adapter_model.safetensors", "pt") as tensors:
        named = list(tensors.keys())
    assert all(re.fullmatch(r"base_model\.model\..+\.lora_[AB]\.weight", key) for key in named)  # what vLLM parses
    assert {key.split(".lora_")[0].rsplit(".", 1)[-1] for key in named} == set(config["target_modules"])
    with warnings.catch_warnings():  # peft uses a name that transformers has since changed
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        found = logits_of(out, AutoPeftModelForCausalLM)
    torch.testing.assert_close(found, run.logits(), rtol=CLOSE, atol=CLOSE)


def test_merged_adapter_is_a_whole_model(tmp_path: Path) -> None:
    run, out = trained_run(tmp_path, adapter_rank=3), tmp_path / "out"
    result = run.export(out, merge=True)
    assert result.form == "model"
    assert not (out / "adapter_config.json").exists()
    torch.testing.assert_close(logits_of(out), run.logits(), rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("adapter_rank", [0, 3])
def test_model_in_4_bits_answers_as_the_whole_export_does_when_it_is_loaded_in_4_bits(
    tmp_path: Path, adapter_rank: int
) -> None:
    run = trained_run(tmp_path, adapter_rank=adapter_rank)
    whole, small = tmp_path / "whole", tmp_path / "small"
    run.export(whole, merge=bool(adapter_rank))
    result = run.export(small, merge=bool(adapter_rank), four_bit=True)
    assert (result.form, result.four_bit) == ("model", True)
    expected = load_base(whole, torch.device("cpu"), torch.float32, four_bit=True).eval()
    found: Any = AutoModelForCausalLM.from_pretrained(small, local_files_only=True).eval()
    keep_differentiable(found)  # a model this small has no packed product
    with torch.no_grad():
        assert torch.equal(found(PROMPT).logits, expected(PROMPT).logits)
    with safe_open(small / "model.safetensors", "pt") as tensors:
        assert tensors.get_tensor("model.layers.0.mlp.up_proj.weight").dtype == torch.uint8
        assert tensors.get_tensor("model.embed_tokens.weight").dtype == torch.float32
    assert not [path for path in small.iterdir() if path.is_dir()]
    assert "bitsandbytes" in (small / "README.md").read_text()


def test_adapter_alone_is_not_exported_in_4_bits(tmp_path: Path) -> None:
    run = trained_run(tmp_path, adapter_rank=3)
    with pytest.raises(ConfigurationError, match="--merge"):
        run.export(tmp_path / "out", four_bit=True)
    assert not (tmp_path / "out").exists()


def test_adapter_trained_over_a_base_in_4_bits_is_merged_into_the_whole_one(tmp_path: Path) -> None:
    """Its family differs, and its configuration may leave rank and format to the machine."""
    run, out = trained_run(tmp_path, adapter_rank=3), tmp_path / "out"
    path = run.home.checkpoints / "round-000008"
    state, config = (json.loads((path / name).read_text()) for name in ("state.json", "config.json"))
    shapes = {key: tuple(p.shape) for key, p in run.policy.trainable().items()}
    state["family"] = families_in(run.model, "auto", shapes)[1].hex()
    config["policy"] |= {"adapter_rank": "auto", "four_bit": "auto"}
    (path / "state.json").write_text(json.dumps(state))
    (path / "config.json").write_text(json.dumps(config))
    assert run.export(out, merge=True).form == "model"
    torch.testing.assert_close(logits_of(out), run.logits(), rtol=CLOSE, atol=CLOSE)
    assert run.export(tmp_path / "alone").form == "adapter"


def test_adapter_whose_base_model_is_gone_is_exported_alone_and_not_merged(tmp_path: Path) -> None:
    run = trained_run(tmp_path, adapter_rank=3)
    elsewhere = Path(shutil.move(run.model, tmp_path / "elsewhere"))
    result = run.export(tmp_path / "alone")
    assert "no such folder" in result.warnings[0]
    assert sorted(path.name for path in (tmp_path / "alone").iterdir()) == [
        "README.md", "adapter_config.json", "adapter_model.safetensors", "starling.json",
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"no such folder.*--model"):
        run.export(tmp_path / "merged", merge=True)
    assert not (tmp_path / "merged").exists()
    run.export(tmp_path / "merged", merge=True, model=str(elsewhere))
    torch.testing.assert_close(logits_of(tmp_path / "merged"), run.logits(), rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize(("adapter_rank", "merge"), [(0, False), (3, False), (3, True)])
def test_checkpoint_of_another_family_than_the_base_model_is_refused(
    tmp_path: Path, adapter_rank: int, merge: bool
) -> None:
    run = trained_run(tmp_path, adapter_rank=adapter_rank)
    other = make_model(tmp_path / "other", "llama")
    with pytest.raises(ConfigurationError, match=r"another family.*--model"):
        run.export(tmp_path / "out", merge=merge, model=str(other))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", sorted(CONFIGURATIONS))
def test_family_is_known_without_loading_the_model(tmp_path: Path, name: str) -> None:
    folder = make_model(tmp_path / "model", name)
    policy = Policy.load(PolicySection(model=str(folder)))
    shapes = {key: tuple(p.shape) for key, p in policy.trainable().items()}
    whole, four_bit = families_in(folder, "auto", shapes)
    assert whole == policy.family != four_bit
    assert policy.family not in families_in(folder, "auto", dict(list(shapes.items())[1:]))


def test_checkpoint_is_chosen_by_round_by_path_or_as_the_best(tmp_path: Path, run: TrainedRun) -> None:
    for name in ("7", "best", str(run.home.checkpoints / "round-000007")):
        out = tmp_path / name.rsplit("/", 1)[-1]
        assert run.export(out, checkpoint=name).round == 7
    with pytest.raises(ConfigurationError, match="rounds 7, 8"):
        run.export(tmp_path / "out", checkpoint="6")


def test_damaged_checkpoint_is_refused_by_name_and_passed_over_otherwise(tmp_path: Path, run: TrainedRun) -> None:
    tensors = run.home.checkpoints / "round-000008" / "tensors.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-3] ^= 1
    tensors.write_bytes(content)
    with pytest.raises(StorageError, match="SHA-256"):
        run.export(tmp_path / "out", checkpoint="8")
    assert not (tmp_path / "out").exists()
    assert run.export(tmp_path / "out").round == 7


def test_data_directory_without_a_checkpoint_is_refused_with_what_to_do(tmp_path: Path, run: TrainedRun) -> None:
    shutil.rmtree(run.home.checkpoints)
    with pytest.raises(ConfigurationError, match=r"starling up"):
        run.export(tmp_path / "out")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_not_exported(tmp_path: Path, run: TrainedRun, value: float) -> None:
    with torch.no_grad():
        run.policy.trainable()["model.norm.weight"][3] = value
    run.checkpoint(9)
    with pytest.raises(StorageError, match=r"1 of 32 values of model\.norm\.weight are not finite.*--checkpoint"):
        run.export(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert run.export(tmp_path / "out", checkpoint="8").round == 8


def test_checkpoint_of_another_version_is_refused(tmp_path: Path, run: TrainedRun) -> None:
    path = run.home.checkpoints / "round-000008" / "config.json"
    config = json.loads(path.read_text())
    config["policy"]["a key of the future"] = 1
    path.write_text(json.dumps(config))
    with pytest.raises(StorageError, match="another version"):
        run.export(tmp_path / "out")


def test_the_command_prints_what_was_made_and_how_to_load_it(
    tmp_path: Path, run: TrainedRun, starling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = starling("export", "out", "--home", str(run.home.path))
    assert code == 0
    assert "exported round 8 of " in out and " to ./out (" in out
    assert "Load it: AutoModelForCausalLM.from_pretrained('./out')" in out
    assert starling("export", "out", "--home", str(run.home.path))[0] == 78
    code, out, _ = starling("export", "out", "--home", str(run.home.path), "--force", "--checkpoint", "7", "--json")
    assert (code, json.loads(out)["round"], json.loads(out)["folder"]) == (0, 7, str(tmp_path / "out"))
