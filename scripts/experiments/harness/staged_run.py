"""One run of nodes that learn by reinforcement, whose training passes are in stages; ``nodes_run.py`` does the rest.

A cut stands behind every layer of the model: what leaves the layer crosses it on its way to the next stage, its
gradient on the way back. Completions are drawn by the node's engine from the whole model, as by machines that hold it
in fewer bits; so the learner's probabilities differ from the engine's by what is lost at the cuts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from node.learner.objective.forward import Network
from scripts.experiments.harness import nodes_run
from scripts.experiments.harness.crossings import Crosses, Crossing
from scripts.experiments.harness.nodes_run import ExperimentNode
from scripts.experiments.harness.plans import RunPlan, RunResult
from scripts.experiments.harness.simulated_swarm import SimulatedSwarm


class StagedPlan(RunPlan, frozen=True, omit_defaults=True, kw_only=True):
    crosses: Crosses

    harness: ClassVar[str] = "scripts.experiments.harness.staged_run"

    @property
    def result_type(self) -> type[StagedResult]:
        return StagedResult


class StagedResult(RunResult, frozen=True, kw_only=True):
    plan: StagedPlan
    token_bytes: float  # at one cut, there and back


def execute(plan: StagedPlan, models: Path, is_orphaned: Callable[[], bool] = lambda: False) -> StagedResult:
    """Runs ``plan``; see ``nodes_run.execute``."""
    crossings = list[Crossing]()

    def cut(node: ExperimentNode, swarm: SimulatedSwarm | None) -> None:
        for layer in Network.of(node.policy.model).layers:
            crossings.append(crossing := Crossing(plan.crosses))
            layer.register_forward_hook(_crossed(crossing))

    found = nodes_run.execute(plan, models, is_orphaned, cut)
    token_bytes = sum(each.bytes for each in crossings) / sum(each.tokens for each in crossings)
    return StagedResult(**{name: getattr(found, name) for name in found.__struct_fields__}, token_bytes=token_bytes)


def _crossed(crossing: Crossing) -> Callable[[torch.nn.Module, Any, Any], Any]:
    def hook(layer: torch.nn.Module, given: Any, left: Any) -> Any:
        if isinstance(left, Tensor):
            return crossing(left)
        return (crossing(left[0]), *left[1:])

    return hook
