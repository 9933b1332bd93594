"""Two processes that take steps on tiny models together, and each also alone: ``run_together`` returns how they differ.

python -m tests.node.learner.sharding.two_processes MEETING
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from node.configuration import LearnerSection, ObjectiveSection
from node.learner.objective.batch import TrainingGroup
from node.learner.objective.forward import Network, PassSettings
from node.learner.objective.reference_policy import ReferencePolicy
from node.learner.sharding.process_group import DeviceGroup, reshard, shard_network
from node.learner.steps.devices import ONE_DEVICE, Devices, StepTask
from node.learner.steps.gradients import rows_of, shard_of
from node.learner.steps.optimizer import MasterAdamW
from node.learner.steps.step import BatchReport, OptimizerSteps
from node.policy.adapter import with_adapter
from tests.hang_guard import HANG_SECONDS
from tests.node.learner.objective.tiny_networks import built, completion, groups
from tests.node.learner.objective_sections import objective_section

RATE: Final = 1e-3
ROOT: Final = Path(__file__).parents[4]

CASES: Final[dict[str, dict[str, Any]]] = {
    "tied": {"architecture": "qwen3"},
    "untied": {"architecture": "llama"},
    "biases": {"architecture": "gpt-neox"},
    "bfloat16": {"architecture": "qwen3", "dtype": "bfloat16"},
    "adapter on bfloat16": {"architecture": "qwen3", "dtype": "bfloat16", "adapter": True},
    "two steps": {
        "architecture": "qwen3",
        "objective": {"correction": "f_tis", "steps": 2},
    },
    "gradient not finite": {"architecture": "qwen3", "advantage": math.nan},
}


class Learning:
    """One tiny policy that learns, alone or in shards."""

    def __init__(self, case: dict[str, Any], group: DeviceGroup | None) -> None:
        torch.manual_seed(5)
        model = built(case["architecture"], getattr(torch, case.get("dtype", "float32")))
        model = with_adapter(model, 4) if case.get("adapter") else model
        torch.manual_seed(6)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # begins as zeros, which would leave A without a gradient
                torch.nn.init.normal_(parameter, std=0.1)
        self.network = Network.of(model.eval())
        if group is not None:
            shard_network(self.network, group.mesh)
        self.devices: Devices = ONE_DEVICE if group is None else group
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        section = LearnerSection(learning_rate=RATE)
        self.optimizer = (
            MasterAdamW(self.trained, section) if group is None else MasterAdamW(self.trained, section, sums=group.sums)
        )
        self.objective: ObjectiveSection = objective_section(**case.get("objective", {}))
        self.reference = ReferencePolicy(self.trained, self.objective)

    def learn(self, batch: Sequence[TrainingGroup]) -> BatchReport:
        task = StepTask(tuple(batch), PassSettings(60, recompute=True, chunk_tokens=5), 1.0, 8, 4)
        report = OptimizerSteps(self.network, self.optimizer, self.objective, self.reference, self.devices).take(task)
        reshard(self.network)
        return report


def batches_of(case: dict[str, Any]) -> list[list[TrainingGroup]]:
    """Returns many micro-batches of unlike lengths, one that is a single completion, none, and many again."""
    many = groups(1, prompts=5)
    one = [TrainingGroup((1, 2), (completion([3], case.get("advantage", 1.0)),), 1, 1)]
    return [many, one, [], groups(2, prompts=3)]


def compare(case: dict[str, Any], group: DeviceGroup) -> dict[str, Any]:
    alone, together = Learning(case, None), Learning(case, group)
    before = {name: p.detach().float().clone() for name, p in alone.trained.items()}
    reports = [(_figures(alone.learn(batch)), _figures(together.learn(batch))) for batch in batches_of(case)]
    apart = moved = 0.0
    for name, whole in alone.trained.items():
        rows = rows_of(whole.shape, group.rank, group.count)
        theirs, ours = whole.detach()[rows].float(), shard_of(together.trained[name].detach()).float()
        assert theirs.shape == ours.shape
        apart += float((theirs - ours).square().sum())
        moved += float((theirs - before[name][rows]).square().sum())
    held = sum(master.numel() for master in together.optimizer.masters().values())
    return {
        "reports": reports,
        "apart": math.sqrt(apart / moved),  # as a share of the way that the steps went
        "held": held,
        "parameters": sum(p.numel() for p in alone.trained.values()),
        "skipped": [alone.optimizer.steps_skipped, together.optimizer.steps_skipped],
    }


def _figures(report: BatchReport) -> dict[str, Any]:
    objective, step = report.objective, report.step
    return {
        "loss": objective.loss,
        "tokens": objective.tokens,
        "completions": objective.completions,
        "entropy": objective.entropy,
        "norm": 0.0 if step is None else step.gradient_norm,
        "taken": step is not None and step.taken,
    }


def run_together(meeting: Path) -> list[dict[str, Any]]:
    """Returns what each of two processes found, by case. The first is this one, which has imported torch already."""
    other = subprocess.Popen(
        [sys.executable, "-m", "tests.node.learner.sharding.two_processes", str(meeting)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        with torch.random.fork_rng(devices=[]):
            found = found_by(0, meeting)
        printed, _ = other.communicate(timeout=HANG_SECONDS)
    finally:
        other.kill()
        other.communicate()
    return [found, json.loads(printed.splitlines()[-1])]


def found_by(rank: int, meeting: Path) -> dict[str, Any]:
    group = DeviceGroup(meeting, rank, 2, torch.device("cpu"))
    try:
        return {name: compare(case, group) for name, case in CASES.items()}
    finally:
        group.close()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(found_by(1, Path(sys.argv[1]))) + "\n")
