"""The model card: what the exported model is, how it came to be, and how to load it. Pure functions.

It names no peer, no address and no path of this machine: what is exported is often published. Text of the
configuration is escaped for YAML and Markdown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from node.configuration.published import is_hub_id, published_name, shaping_configuration
from node.export.source import Source
from node.printable import printable
from node.quantities import counted, duration, times
from node.report.facts import RunFacts
from node.version import VERSION


@dataclass(frozen=True, slots=True)
class CardFacts:
    source: Source
    form: Literal["model", "adapter"]
    four_bit: bool  # the linear layers, in NF4
    trained_parameters: int
    adapter_rank: int  # 0: every weight was trained
    replicas: int  # whose mean the weights are, this node's included
    run: RunFacts | None  # None: its metrics.jsonl is not there

    @property
    def base(self) -> str:
        """The base model's name, as configured; of a folder, which may look like a hub id, its own name."""
        model = self.source.policy.model
        return Path(model).name if Path(model).is_dir() else model


def model_card(facts: CardFacts) -> str:
    """Returns README.md."""
    name = _text(published_name(facts.base))
    what = f"a LoRA adapter of rank {facts.adapter_rank}" if facts.adapter_rank else "all weights"
    merged = ", merged into the model" if facts.form == "model" and facts.adapter_rank else ""
    lines = [
        *_front_matter(facts),
        f"# {name} after {facts.source.round:,} rounds in a swarm",
        "",
        f"{name}, trained further by reinforcement learning with starling {VERSION}: {what} "
        f"({facts.trained_parameters:,} parameters){merged}. Nodes on different machines generate answers to tasks "
        "whose rewards anybody can recompute, share them, and learn from their own and each other's.",
        "",
        "## How it came to be",
        "",
        *_table(("", ""), _history(facts)),
        "",
        *_rewards(facts),
        "## How to load it",
        "",
        *_loading(facts),
        "",
        "## Configuration",
        "",
        "The part that shaped the weights:",
        "",
        "```json",
        json.dumps(shaping_configuration(facts.source.config), indent=1, default=str),
        "```",
        "",
    ]
    return "\n".join(lines)


def _front_matter(facts: CardFacts) -> list[str]:
    """Returns YAML; strings are written as JSON, which YAML includes."""
    whole = facts.form == "model"
    base = [f"base_model: {json.dumps(facts.base)}"] if is_hub_id(facts.base) else []
    relation = [f"base_model_relation: {'finetune' if whole else 'adapter'}"] if base else []
    tags = ["starling", "reinforcement-learning", "decentralized-training", *(["lora"] if facts.adapter_rank else [])]
    return [
        "---",
        f"library_name: {'transformers' if whole else 'peft'}",
        "pipeline_tag: text-generation",
        *base,
        *relation,
        "tags:",
        *(f"- {tag}" for tag in tags),
        "---",
    ]


def _history(facts: CardFacts) -> Iterable[tuple[str, str]]:
    yield "base model", published_name(facts.base)
    yield "rounds", f"{facts.source.round:,}"
    others = f"the mean of {facts.replicas} replicas of the family, of this node and of peers"
    yield "weights", others if facts.replicas > 1 else "one replica of the family, this node's own"
    yield "family", facts.source.family.hex()
    run = facts.run
    if run is None:
        yield "record", "the run's metrics.jsonl was not there when this was exported"
        return
    if run.began_seconds is not None and run.ended_seconds is not None:
        yield "time", f"{duration(run.ended_seconds - run.began_seconds)}, {counted(run.starts, 'start')}"
    yield "device", run.device or "unknown"
    yield "tokens generated", f"{run.tokens_generated:,}"
    yield "groups of answers", f"{run.sharing.generated:,} own, {run.sharing.used:,} of peers"
    yield "peers learnt from", f"{run.sharing.peers:,}"
    yield "weights averaged with a peer", times(run.averaged_total) if run.averaged_total else "never"
    if dict(facts.source.config.get("checkpoint") or {}).get("from_peers"):
        yield "start", "configured to start from the weights of peers, if they announced better ones"


def _rewards(facts: CardFacts) -> list[str]:
    """Returns the section on rewards; nothing where none is known."""
    evaluation = facts.source.evaluation
    held_out = evaluation.reward_by_task if evaluation else {}
    first = facts.run.first_reward if facts.run else {}
    last = facts.run.last_reward if facts.run else {}
    tasks = sorted({*held_out, *last})
    if not tasks:
        return []
    header = ("task", "at first", "at the end", "held-out prompts, greedy")
    rows = [(task, *(_figure(found.get(task)) for found in (first, last, held_out))) for task in tasks]
    prompts = (
        f"Held-out: {evaluation.prompts} prompts of each task. "
        if evaluation
        else "Not evaluated on held-out prompts. "
    )
    whose = (
        "The figures are of this node's own weights; their mean with the others was not measured."
        if (facts.replicas > 1)
        else "Rewards in training are of answers sampled at temperature 1 or as configured."
    )
    return ["## Mean reward", "", *_table(header, rows), "", prompts + whose, ""]


def _loading(facts: CardFacts) -> list[str]:
    if facts.form == "model":
        python = [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'model = AutoModelForCausalLM.from_pretrained(".")  # this folder',
            'tokenizer = AutoTokenizer.from_pretrained(".")',
        ]
        if facts.four_bit:
            python.insert(0, "# pip install bitsandbytes: the linear layers are stored in 4 bits (NF4)")
        return ["```python", *python, "```", "", "or `vllm serve .` in this folder."]
    python = [
        "from peft import AutoPeftModelForCausalLM",
        "",
        'model = AutoPeftModelForCausalLM.from_pretrained(".")  # this folder; loads the base model too',
    ]
    serve = f"vllm serve BASE --enable-lora --max-lora-rank {max(8, facts.adapter_rank)} --lora-modules starling=."
    return [
        "```python",
        *python,
        "```",
        "",
        f"or `{serve}` in this folder. `adapter_config.json` says where the base model was.",
    ]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *([_text(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _text(text: str) -> str:
    """Returns text that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]<>|#!~$])", r"\\\1", printable(text, 400))
