"""A tiny model in a folder, and a data directory with a checkpoint of it: trained a little, really written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from node.checkpoints.checkpoints import write
from node.configuration import Config
from node.evaluation.held_out import HeldOutReward
from node.events import Averaged, Event, encode_event
from node.export.export import export
from node.export.export_result import Export, Request
from node.home import Home
from node.learner.state.learner_state import LearnerState
from node.learner.state.persistence import snapshot_of
from node.learner.steps.optimizer import MasterAdamW
from node.policy.policy import Policy
from tests.factories import round_done
from tests.node.engines.conftest import CONFIGURATIONS, save_tokenizer

PROMPT = torch.tensor([[3, 4, 5, 6, 7]])


def make_model(folder: Path, name: str = "qwen3", dtype: torch.dtype = torch.float32) -> Path:
    """Saves a random model of a configuration of ``CONFIGURATIONS``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = AutoModelForCausalLM.from_config(CONFIGURATIONS[name]).to(dtype)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


class Quiet:
    """Records an export's progress."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def step(self, text: str) -> None:
        self.steps.append(text)

    def size(self, written_bytes: int, expected_bytes: int) -> None:
        return


@dataclass
class TrainedRun:
    """A data directory after some rounds, and the policy as it was at the last of them."""

    home: Home
    model: Path
    policy: Policy
    config: Config

    def checkpoint(self, round_number: int, *, beyond: float = 0.0, **changes: Any) -> Path:
        """Writes a checkpoint; the optimizer's weights, where it has its own, lie ``beyond`` above the policy's."""
        state = LearnerState(round=round_number, policy_version=round_number, **changes)
        optimizer = MasterAdamW(self.policy.trainable(), self.config.learner)
        optimizer.put({name: weight + beyond for name, weight in optimizer.masters().items()})
        snapshot = snapshot_of(self.config, self.policy, optimizer, state, dict)
        return write(self.home.checkpoints, snapshot, keep=10)[0]

    def export(self, folder: Path, **request: Any) -> Export:
        return export(self.home, Request(folder, **request), Quiet())

    @torch.no_grad()
    def logits(self) -> Tensor:
        found: Tensor = self.policy.model(PROMPT).logits
        return found


def trained_run(folder: Path, name: str = "qwen3", *, dtype: str = "float32", adapter_rank: int = 0) -> TrainedRun:
    """Makes model and data directory, moves the trained weights, and checkpoints rounds 7 and 8."""
    model = make_model(folder / "model", name)
    section = {"model": str(model), "dtype": dtype, "device": "cpu", "adapter_rank": adapter_rank}
    config = Config.model_validate({"name": "ann", "policy": section, "swarm": {"peers": ["/ip4/192.0.2.7/tcp/1"]}})
    policy = Policy.load(config.policy)
    home = Home(folder / "home")
    home.prepare()
    run = TrainedRun(home, model, policy, config)
    generator = torch.Generator().manual_seed(1)
    for number in (7, 8):
        with torch.no_grad():
            for parameter in policy.trainable().values():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
        run.checkpoint(number, evaluation=HeldOutReward(number, 16, {"add": 1.0 - number / 10}, 1.0 - number / 10))
    events: list[Event] = [
        *(round_done(n, divergence_by_peer={"self": 0.0, "12D3stranger": 0.1}) for n in range(1, 9)),
        Averaged(time_seconds=8.0, round=8, partner="12D3stranger", because="committed", seconds=1.0),
        round_done(9, divergence_by_peer={"12D3later": 0.1}),
    ]
    run.home.metrics.write_bytes(b"".join(encode_event(event) + b"\n" for event in events))
    return run
