"""The card tells how the model came to be, and nothing of this machine or of strangers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.configuration import Config, PolicySection
from node.configuration.published import is_hub_id, published_name, shaping_configuration
from node.export.model_card import CardFacts, model_card
from node.export.source import Source
from tests.node.export.trained_run import TrainedRun, trained_run


@pytest.fixture
def run(tmp_path: Path) -> TrainedRun:
    return trained_run(tmp_path)


def card_of(base: str = "Qwen/Qwen3-0.6B", config: Any = None, **changes: Any) -> str:
    configured = Config().model_dump(mode="json") if config is None else config
    source = Source(Path("/c"), 1200, b"\xab" * 16, PolicySection(model=base), {}, configured, None)
    facts = CardFacts(source, "model", four_bit=False, trained_parameters=1, adapter_rank=0, replicas=1, run=None)
    return model_card(replace(facts, **changes))


def front_matter(card: str) -> list[str]:
    found = re.match(r"---\n(.*?)\n---\n# ", card, re.DOTALL)
    assert found is not None
    return found[1].split("\n")


def test_card_has_rounds_rewards_peers_and_averagings_up_to_its_round(tmp_path: Path, run: TrainedRun) -> None:
    run.export(tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    for row in (
        "| rounds | 8 |",
        "| groups of answers | 8 own, 8 of peers |",
        "| peers learnt from | 1 |",  # the one of round 9 came later
        "| weights averaged with a peer | once |",
        "| tokens generated | 800 |",
        "| add | 0.250 | 0.250 | 0.200 |",
    ):
        assert row in card
    assert "16 prompts of each task" in card


def test_card_names_no_peer_no_address_and_no_path_of_this_machine(tmp_path: Path, run: TrainedRun) -> None:
    run.export(tmp_path / "out", mean_of_family=True)  # no node answers, which is said with the socket's path
    for name in ("README.md", "starling.json"):
        text = (tmp_path / "out" / name).read_text()
        assert not [secret for secret in ("12D3", "192.0.2.7", str(tmp_path)) if secret in text]
        assert '"model": "model"' in text  # the last part of the path


def test_card_of_a_run_whose_record_is_gone_says_so(tmp_path: Path, run: TrainedRun) -> None:
    run.home.metrics.unlink()
    run.export(tmp_path / "out")
    assert "metrics.jsonl was not there" in (tmp_path / "out" / "README.md").read_text().replace("\\", "")


def test_front_matter_names_a_base_model_of_the_hub_and_no_other() -> None:
    assert front_matter(card_of()) == [
        "library_name: transformers",
        "pipeline_tag: text-generation",
        'base_model: "Qwen/Qwen3-0.6B"',
        "base_model_relation: finetune",
        "tags:",
        "- starling",
        "- reinforcement-learning",
        "- decentralized-training",
    ]
    adapter = front_matter(card_of(form="adapter", adapter_rank=16))
    assert "library_name: peft" in adapter and "base_model_relation: adapter" in adapter and "- lora" in adapter
    for local in ("builtin:wren", "/home/ann/qwen", "models/a:b", "../up"):
        assert not any("base_model" in line for line in front_matter(card_of(base=local)))


def test_text_of_the_configuration_is_shown_as_text() -> None:
    card = card_of(base="/models/a|b\n---\n<script>`x`")
    assert "<script>" not in card.partition("## Configuration")[0].replace("\\<script\\>", "")
    assert "\n---\n" not in card.partition("\n---\n")[2].partition("```json")[0]


def test_adapter_says_how_to_load_it_with_its_base_model() -> None:
    card = card_of(form="adapter", adapter_rank=16)
    assert "AutoPeftModelForCausalLM" in card and "--max-lora-rank 16" in card
    assert "LoRA adapter of rank 16" in card
    assert "merged into the model" in card_of(adapter_rank=16)


def test_configuration_in_the_card_has_what_shapes_the_weights_and_of_paths_the_last_name() -> None:
    config = Config.model_validate(
        {"policy": {"model": "/home/ann/m"}, "tasks": {"jsonl": ["/home/ann/secret.jsonl"]}}
    ).model_dump(mode="json")
    shown = shaping_configuration(config)
    assert shown["policy"]["model"] == "m"
    assert shown["tasks"]["jsonl"] == ["secret.jsonl"]
    assert shown["learner"] == config["learner"]
    assert not {"swarm", "api", "name", "checkpoint"} & shown.keys()
    assert json.loads(re.findall(r"```json\n(.*?)```", card_of(config=config), re.DOTALL)[0]) == shown


@pytest.mark.parametrize(
    ("model", "hub", "name"),
    [
        ("Qwen/Qwen3-0.6B", True, "Qwen/Qwen3-0.6B"),
        ("builtin:wren", False, "builtin:wren"),
        ("/home/ann/models/wren", False, "wren"),
        ("./out/", False, "out"),
    ],
)
def test_name_under_which_a_model_is_published(model: str, hub: bool, name: str) -> None:
    assert (is_hub_id(model), published_name(model)) == (hub, name)
