"""One run: nodes that learn side by side, from their first round to their last.

Everything that learns is the node's own code: ``Learner.round`` with its intake, engine, policy, tasks and optimizer,
over the swarm's own code on a simulated network (``simulated_swarm.py``); an engine in a process of its own is a real
one. Differences from a real node: all learners live in one process and take their rounds in turn, rewards are computed
in this process, no checkpoint is written, and a node waits for requested groups without a limit, so that a slow machine
makes the same run as a fast one.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Final

import torch
from torch import Tensor

from node.configuration import DEFAULT_ROWS, Config, PolicySection, chosen
from node.engines.backends import EngineParts, engine_of
from node.engines.engine import Engine
from node.engines.torch import TorchEngine
from node.environments.conversation import ConversationTask
from node.evaluation.evaluation import mean_rewards
from node.events import Averaged, AveragingTakenBack, EngineChanged, Event, RoundDone
from node.home import Home
from node.learner.allocation.allocator import PROMPT_SEEDS
from node.learner.assembly.wiring import Extras, learner_of
from node.learner.foreign.intake import Incoming, RolloutIntake
from node.learner.generation.own_rollouts import RewardScorer
from node.learner.generation.schedule import needs_own_weights
from node.learner.influence.guard import InfluenceState
from node.learner.influence.standing import Standings
from node.learner.objective.forward import Network
from node.learner.state.learner_state import LearnerState
from node.learner.steps.optimizer import MasterAdamW
from node.policy.model_files import BUILTIN_PREFIX
from node.policy.policy import Policy
from node.tasks.registry import BUILT_IN_TASKS
from node.tasks.scorer import Scores
from node.tasks.split import Part, held_out_prompts, training_prompt
from node.tasks.task import Prompt, Task
from node.tasks.worker import score_one
from protocol.messages import PromptRef
from scripts.experiments.harness.family_averaging import WaitingAverager
from scripts.experiments.harness.learner_ablations import ABLATIONS
from scripts.experiments.harness.plans import Measurement, NodeHistory, NodePlan, RunPlan, RunResult
from scripts.experiments.harness.simulated_swarm import SimulatedSwarm, SwarmMember
from scripts.experiments.harness.skills import EIGHT_SKILLS, scratch_pad_tasks

ROUND_SECONDS: Final = 5.0  # of network time for a round of all nodes
WAIT_SECONDS: Final = 300.0  # a hang guard
MEASURE_SEED: Final = 7


class WaitingIntake(RolloutIntake):
    """Always returns all requested groups: what a round learns from does not depend on the machine's speed."""

    def collect(self, patience_seconds: float) -> Incoming:
        return super().collect(WAIT_SECONDS)


class OwnProcessScorer(RewardScorer):
    """Computes the tasks' own rewards in this process; a reward that raises is our bug."""

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self._tasks = tasks

    def score(self, items: Sequence[tuple[PromptRef, Sequence[str]]]) -> list[Scores]:
        return [self._scores(self._tasks[ref.task], ref, texts) for ref, texts in items]

    @staticmethod
    def _scores(task: Task, ref: PromptRef, texts: Sequence[str]) -> Scores:
        if isinstance(task, ConversationTask):
            verdicts = [score_one(task, task.prompt(ref), text) for text in texts]
            if faults := [verdict.detail for verdict in verdicts if verdict.fault is not None]:
                raise RuntimeError(faults[0])
            rewards = tuple(verdict.reward for verdict in verdicts)
            return Scores(rewards, (None,) * len(texts), tuple(verdict.played for verdict in verdicts))
        return Scores(tuple(task.rewards(task.prompt(ref), texts)), (None,) * len(texts))


class ExperimentNode:
    """One learner with its parts, and the record of its rounds."""

    def __init__(
        self, plan: NodePlan, config: Config, policy: Policy, engine: Engine, tasks: Mapping[str, Task],
        member: SwarmMember | None, clock: Callable[[], float], *, trusting: bool,
        continued: Callable[[Policy, MasterAdamW], LearnerState] | None = None,
    ) -> None:  # fmt: skip
        """``continued`` puts an earlier node's weights and moments in place, and returns its state."""
        self._plan, self.policy, self._tasks = plan, policy, tasks
        self.name, self.family = plan.name, policy.family
        self._scorer = OwnProcessScorer(tasks)
        self.member = member
        self._intake = WaitingIntake(member, tasks, config.learner, clock, research=config.objective.research)
        self.optimizer = optimizer = MasterAdamW(policy.trainable(), config.learner)
        self._averaged: list[Averaged] = []
        self._taken_back = 0
        self.replica: WaitingAverager | None = None
        if member is not None and "averaging" in plan.settings:
            self.replica = WaitingAverager(member, optimizer, policy.family, config, self._note, clock)
        new = LearnerState(influence=InfluenceState(standings=Standings(trusting=trusting)))
        self.state = new if continued is None else continued(policy, optimizer)
        self.learner = learner_of(
            config,
            policy,
            tasks,
            engine,
            self._scorer,
            self._intake,
            optimizer,
            self.state,
            report=lambda event: None,
            clock=clock,
            extras=Extras(averager=self.replica),
        )
        self._rounds: list[RoundDone] = []
        self.measurements: list[Measurement] = []
        self._rejected: Counter[str] = Counter()

    def round(self) -> None:
        """Runs one round; when it returns, the swarm has completed the round's requests."""
        done = self.learner.round()
        self._intake.settle(WAIT_SECONDS)
        if faults := self._intake.faults():
            raise faults[0]
        self._rounds.append(done)
        self._rejected.update(done.foreign_rejected)

    def measure(self, round_number: int, *, prompts: int, samples: int, trained: int = 0) -> None:
        """Measures success with the newest weights, on a new embedded engine: the learner's may hold older ones."""
        engine = TorchEngine(self.policy, rows=256, seed=MEASURE_SEED)
        asked = held_out_prompts(self._tasks, Part.TEST, prompts)

        def success(
            temperature: float, samples: int, prompts: Mapping[str, Sequence[Prompt]] = asked
        ) -> dict[str, float]:
            return mean_rewards(
                self.policy.tokens, engine, self._scorer, self._tasks, prompts,
                samples=samples, temperature=temperature, seed=MEASURE_SEED,
                context=Network.of(self.policy.model).context,
            )  # fmt: skip

        sampled = success(1.0, samples) if samples else {}
        practised = success(1.0, 1, trained_prompts(self._tasks, trained)) if trained else {}
        self.measurements.append(Measurement(round_number, success(0.0, 1), sampled, practised))

    def _note(self, event: Event) -> None:
        if isinstance(event, Averaged):
            self._averaged.append(event)
        elif isinstance(event, AveragingTakenBack):
            self._taken_back += 1

    @property
    def rewards(self) -> list[float]:
        return [each.reward for each in self._rounds]

    def close(self) -> None:
        self.learner.close()
        self._intake.close()
        if self.replica is not None:
            self.replica.close()

    def result(self, bytes_announced: int) -> NodeHistory:
        rounds = self._rounds
        return NodeHistory(
            name=self._plan.name,
            model=self._plan.model,
            reward=self.rewards,
            tokens=[r.tokens_generated for r in rounds],
            effective_sample_share=[r.effective_sample_share for r in rounds],
            entropy=[r.entropy for r in rounds],
            foreign_groups_used=sum(r.foreign_groups_used for r in rounds),
            foreign_groups_replayed=sum(r.foreign_groups_replayed for r in rounds),
            foreign_completions_trained=sum(r.foreign_completions for r in rounds),
            bytes_fetched=sum(r.bytes_fetched for r in rounds),
            bytes_announced=bytes_announced,
            rejected=dict(sorted(self._rejected.items())),
            measurements=self.measurements,
            outer_steps=sum(event.partner is not None for event in self._averaged),
            distances=[event.distance for event in self._averaged if event.distance is not None],
            taken_back=self._taken_back,
            averaging_bytes=sum(event.received_bytes for event in self._averaged),
        )


OnMade = Callable[[ExperimentNode, SimulatedSwarm | None], None]


def tasks_named(names: Sequence[str]) -> dict[str, Task]:
    known: dict[str, Task] = {**BUILT_IN_TASKS, **EIGHT_SKILLS, **scratch_pad_tasks()}
    return {name: known[name] for name in names}


def section_of(plan: NodePlan, models: Path) -> PolicySection:
    """Returns a node's model; a name that is not built in is a folder under ``models``."""
    name = plan.model if plan.model.startswith(BUILTIN_PREFIX) else str(models / plan.model)
    section = {"model": name, "device": "cpu", "dtype": "float32", **plan.settings.get("policy", {})}
    return PolicySection.model_validate(section)


def engine_of_node(config: Config, policy: Policy, home: Path, stack: ExitStack) -> Engine:
    """Returns the engine; ``stack`` ends its process, which has its socket and files in ``home``.

    "auto" is the embedded engine here. An engine that was named and cannot be had, or is given up, ends the run with
    ``RuntimeError``: the result would be of another condition.
    """
    rows, owns_weights = chosen(config.engine.rows, DEFAULT_ROWS), needs_own_weights(config)
    if config.engine.backend in ("auto", "torch"):
        return TorchEngine(policy, rows=rows, seed=config.seed, owns_weights=owns_weights)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    parts = EngineParts(Home(home), config, policy, rows, True, owns_weights, _must_stay, time.time)
    return engine_of(parts, stack)


def _must_stay(event: Event) -> None:
    if isinstance(event, EngineChanged) and event.backend != event.configured:
        raise RuntimeError(f"engine.backend is {event.configured!r}, and {event.backend!r} generates: {event.because}")


def execute(
    plan: RunPlan, models: Path, is_orphaned: Callable[[], bool] = lambda: False, made: OnMade = lambda *parts: None
) -> RunResult:
    """Runs ``plan`` on one thread; ``made`` is called with each node and its swarm before the first round. Raises
    ``InterruptedError`` once ``is_orphaned``, when no process waits for it."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(plan.seed)
    began, cpu_began = time.monotonic(), time.process_time()
    tasks = tasks_named(plan.tasks)
    with ExitStack() as stack:
        for name in plan.ablations:
            stack.enter_context(ABLATIONS[name]())
        swarm = None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="experiment-")))
        if len(plan.nodes) > 1:
            swarm = stack.enter_context(SimulatedSwarm([node.name for node in plan.nodes], folder / "swarm", plan.seed))
        nodes = []
        for node_plan in plan.nodes:
            config = node_plan.config(plan.seed).model_copy(update={"policy": section_of(node_plan, models)})
            policy = Policy.load(config.policy)
            member = swarm.member(node_plan.name) if swarm is not None else None
            clock = swarm.now_seconds if swarm is not None else time.time
            engine = engine_of_node(config, policy, folder / "engines" / node_plan.name, stack)
            trusting = not plan.strangers
            node = ExperimentNode(node_plan, config, policy, engine, tasks, member, clock, trusting=trusting)
            stack.callback(node.close)
            nodes.append(node)
            made(node, swarm)
        apart, cpu_at = _run_rounds(plan, nodes, swarm, is_orphaned)
        announced = [node.member.bytes_announced if node.member is not None else 0 for node in nodes]
        results = [node.result(sum(announced) - own) for node, own in zip(nodes, announced, strict=True)]
    seconds, cpu_seconds = time.monotonic() - began, time.process_time() - cpu_began
    return RunResult(plan.key, plan.condition, plan.seed, seconds, cpu_seconds, results, plan, apart, cpu_at)


def _run_rounds(
    plan: RunPlan, nodes: Sequence[ExperimentNode], swarm: SimulatedSwarm | None, is_orphaned: Callable[[], bool]
) -> tuple[list[float], list[float]]:
    """Runs all rounds; returns, for each measurement, the mean distance of nodes of one family, and the processor
    seconds until then."""
    apart, cpu_at = list[float](), list[float]()
    cpu_began = time.process_time()  # set forward by what measuring takes
    for round_number in range(plan.rounds + 1):
        if is_orphaned():
            raise InterruptedError("the experiment that this run belongs to has ended")
        if round_number > 0:
            for node in nodes:
                node.round()
            if swarm is not None:
                swarm.pass_time(ROUND_SECONDS)
        if swarm is not None and round_number == plan.parted_after:
            swarm.part()
        if round_number in plan.measure_at:
            measuring_began = time.process_time()
            cpu_at.append(measuring_began - cpu_began)
            for node in nodes:
                node.measure(
                    round_number,
                    prompts=plan.measure_prompts,
                    samples=plan.measure_samples,
                    trained=plan.measure_trained,
                )
            apart += mean_apart(nodes)
            cpu_began += time.process_time() - measuring_began
    return apart, cpu_at


def trained_prompts(tasks: Mapping[str, Task], count: int) -> dict[str, list[Prompt]]:
    """Returns ``count`` prompts of each task as a learner draws them, always the same."""
    draws = Random(MEASURE_SEED)
    return {
        name: [training_prompt(task, draws.randrange(PROMPT_SEEDS)) for _ in range(count)]
        for name, task in tasks.items()
    }


def mean_apart(nodes: Sequence[ExperimentNode]) -> list[float]:
    """Returns the mean of ‖θ_i - θ_j‖ / ‖θ_i‖ over ordered pairs of one family; an empty list without a pair."""
    pairs = [(one, other) for one, other in permutations(nodes, 2) if one.family == other.family]
    found = [relative_distance(one.optimizer.masters(), other.optimizer.masters()) for one, other in pairs]
    return [statistics.fmean(found)] if found else []


def relative_distance(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """Returns ‖θ_i - θ_j‖ / ‖θ_i‖."""
    apart = sum(float((theirs[name] - tensor).square().sum()) for name, tensor in ours.items())
    return float((apart / sum(float(tensor.square().sum()) for tensor in ours.values())) ** 0.5)
