"""One run of a node that learns alone, at a learning rate that a rule changes; ``nodes_run.py`` does the rest.

Rates are times that of the model's size. The rules, each beginning at ``start``:

    fixed     the rate stays; how far steps move the policy is measured all the same
    kl        the node's own, ``node.learner.steps.rate_control``
    arms      from one state the node learns ``every`` rounds at its rate and the same rounds at ``ARM`` times it, or a
              part, by turns; it goes on from the one with more success on validation prompts: population-based training
              (arXiv 1711.09846) of a population of two. Each arm continues as from a checkpoint.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import torch
from msgspec import structs

from node.checkpoints.checkpoints import NewestCheckpoint, Snapshot
from node.configuration import DEFAULT_ROWS
from node.engines.torch import TorchEngine
from node.evaluation.evaluation import mean_rewards
from node.learner.objective.forward import Network
from node.learner.round import learning
from node.learner.state.learner_state import LearnerState
from node.learner.state.persistence import restore, snapshot_of
from node.learner.steps.optimizer import MasterAdamW
from node.learner.steps.rate_control import RateState, next_rate
from node.learner.steps.step import OptimizerSteps
from node.policy.policy import Policy
from node.tasks.split import Part, held_out_prompts
from scripts.experiments.harness import nodes_run
from scripts.experiments.harness.learner_ablations import replaced
from scripts.experiments.harness.nodes_run import ExperimentNode, OwnProcessScorer, section_of, tasks_named
from scripts.experiments.harness.plans import Measurement, RunPlan, RunResult
from scripts.experiments.harness.simulated_swarm import SimulatedSwarm

ARM: Final = 3.0
JUDGED: Final = 32  # validation prompts a task
JUDGE_SAMPLES: Final = 4
JUDGE_SEED: Final = 11


@dataclass(frozen=True)
class Rule:
    kind: Literal["fixed", "kl", "arms"]
    start: float
    every: int = 0  # rounds of an arm


class TunedPlan(RunPlan, frozen=True, omit_defaults=True, kw_only=True):
    rule: Rule

    harness: ClassVar[str] = "scripts.experiments.harness.tuned_run"

    @property
    def result_type(self) -> type[TunedResult]:
        return TunedResult


class TunedResult(RunResult, frozen=True, kw_only=True):
    """Lists have one entry for each round with a step, of those that were kept."""

    plan: TunedPlan
    factors: list[float]
    kl: list[float | None]  # nats a token, of the step that was taken; None where it was not measured
    signal: list[float]
    rule_seconds: float  # of the processor, for measuring; of arms, for judging and for the rounds that were lost


@dataclass
class Seen:
    """What is seen of steps while a run lasts."""

    factors: list[float] = field(default_factory=list)
    kl: list[float | None] = field(default_factory=list)
    signal: list[float] = field(default_factory=list)
    seconds: float = 0.0


@contextmanager
def seen(rule: Rule) -> Iterator[Seen]:
    """Lets every learner's rate be changed by ``rule`` alone."""
    found, moved = Seen(), OptimizerSteps._moved

    def decided(state: RateState, kl: float | None, signal: float, round_number: int, *, most: float) -> RateState:
        found.factors.append(state.factor)
        found.kl.append(kl)
        found.signal.append(signal)
        after = next_rate(state, kl, signal, round_number, most=most)
        return after if rule.kind == "kl" else replace(state, measured=after.measured)

    def timed(*arguments: Any) -> Any:
        began = time.process_time()
        report = moved(*arguments)
        found.seconds += time.process_time() - began
        return report

    with replaced(learning, "next_rate", decided), replaced(OptimizerSteps, "_moved", timed):
        yield found


def execute(plan: TunedPlan, models: Path, is_orphaned: Callable[[], bool] = lambda: False) -> TunedResult:
    """Runs ``plan``; see ``nodes_run.execute``."""
    rule = plan.rule

    def begins(node: ExperimentNode, swarm: SimulatedSwarm | None) -> None:
        node.state.rate = RateState(rule.start, rule.start)

    with seen(rule) as steps:
        if rule.kind == "arms":
            found, lost = Arms(plan, models, steps).run(is_orphaned)
        else:
            found = nodes_run.execute(plan, models, is_orphaned, begins)
            lost = steps.seconds
    fields = {name: getattr(found, name) for name in found.__struct_fields__ if name != "plan"}
    return TunedResult(**fields, plan=plan, factors=steps.factors, kl=steps.kl, signal=steps.signal, rule_seconds=lost)


@dataclass(frozen=True)
class Arm:
    """Where an arm ended."""

    judged: float  # success on validation prompts
    factor: float
    state: Snapshot
    node: ExperimentNode
    seconds: float


class Arms:
    def __init__(self, plan: TunedPlan, models: Path, steps: Seen) -> None:
        self._plan, (self._node_plan,), self._steps = plan, plan.nodes, steps
        section = section_of(self._node_plan, models)
        self._config = self._node_plan.config(plan.seed).model_copy(update={"policy": section})
        self._tasks = tasks_named(plan.tasks)
        self._policy = Policy.load(section)

    def run(self, is_orphaned: Callable[[], bool]) -> tuple[RunResult, float]:
        """Returns the result, measured after every pair of arms, and the seconds that were lost."""
        plan, rule = self._plan, self._plan.rule
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(plan.seed)
        began, cpu_began = time.monotonic(), time.process_time()
        factor, direction, kept = rule.start, ARM, 0
        rewards, factors, cpu_at, lost = list[float](), list[float](), [0.0], 0.0
        with ExitStack() as stack:
            node = self._node(None, stack)
            measurements, state = [self._measured(node, 0)], self._snapshot(node)
        while kept < plan.rounds:
            if is_orphaned():
                raise InterruptedError("the experiment that this run belongs to has ended")
            arms = [self._arm(state, each) for each in (factor, factor * direction)]
            best = max(arms, key=lambda arm: arm.judged)
            cpu_at.append(cpu_at[-1] + sum(arm.seconds for arm in arms))
            lost += sum(arm.seconds for arm in arms if arm is not best)
            direction = direction if best is not arms[0] else 1 / direction
            factor, state, kept = best.factor, best.state, kept + rule.every
            factors += [factor] * rule.every
            rewards += best.node.rewards
            with ExitStack() as stack:
                measurements.append(self._measured(self._node(state, stack), kept))
        self._steps.factors, self._steps.kl, self._steps.signal = factors, [], []
        history = structs.replace(best.node.result(0), reward=rewards, tokens=[], measurements=measurements)
        taken, cpu_taken = time.monotonic() - began, time.process_time() - cpu_began
        return RunResult(plan.key, plan.condition, plan.seed, taken, cpu_taken, [history], plan, [], cpu_at), lost

    def _arm(self, state: Snapshot, factor: float) -> Arm:
        began = time.process_time()
        with ExitStack() as stack:
            node = self._node(state, stack)
            node.state.rate = RateState(factor, factor)
            for _ in range(self._plan.rule.every):
                node.round()
            judged = self._success(Part.VALIDATION)
            return Arm(judged, factor, self._snapshot(node), node, time.process_time() - began)

    def _node(self, state: Snapshot | None, stack: ExitStack) -> ExperimentNode:
        def continued(policy: Policy, optimizer: MasterAdamW) -> LearnerState:
            return restore(NewestCheckpoint(state, Path("memory")), Path("memory"), policy, optimizer)[0]

        engine = TorchEngine(self._policy, rows=DEFAULT_ROWS, seed=self._config.seed)
        node = ExperimentNode(
            self._node_plan, self._config, self._policy, engine, self._tasks, None, time.time,
            trusting=True,
            continued=continued if state is not None else None,
        )  # fmt: skip
        stack.callback(node.close)
        return node

    def _measured(self, node: ExperimentNode, round_number: int) -> Measurement:
        node.measure(round_number, prompts=self._plan.measure_prompts, samples=self._plan.measure_samples)
        return node.measurements[-1]

    def _snapshot(self, node: ExperimentNode) -> Snapshot:
        live = snapshot_of(self._config, self._policy, node.optimizer, node.state, dict)
        return replace(live, tensors={name: tensor.clone() for name, tensor in live.tensors.items()})

    def _success(self, part: Part) -> float:
        engine = TorchEngine(self._policy, rows=256, seed=JUDGE_SEED)
        found = mean_rewards(
            self._policy.tokens, engine, OwnProcessScorer(self._tasks), self._tasks,
            held_out_prompts(self._tasks, part, JUDGED),
            samples=JUDGE_SAMPLES, temperature=1.0, seed=JUDGE_SEED,
            context=Network.of(self._policy.model).context,
        )  # fmt: skip
        return statistics.fmean(found.values())
