"""One run of ``hail``: a model that writes free text before its answers, beside honest peers and attackers, and then
for some rounds without the attackers."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import ClassVar, Final

import msgspec
import torch
from msgspec import Struct

from node.engines.torch import TorchEngine
from node.evaluation.evaluation import answered
from node.learner.influence.guard import Guard
from node.learner.objective.forward import Network
from node.policy.policy import Policy
from node.tasks.split import Part, held_out_prompts
from protocol.rollouts import Group
from scripts import REPOSITORY
from scripts.attacks.poisoning.careless import NoGuard
from scripts.attacks.poisoning.learning import (
    RECORDINGS,
    Board,
    Learnt,
    configured,
    learner_on,
    recorded,
    rounds_beside,
)
from scripts.attacks.poisoning.payloads import ATTACKS, CROWD, PAYLOADS, announced
from scripts.experiments.harness.experiment import Settings
from scripts.experiments.harness.nodes_run import OwnProcessScorer
from scripts.experiments.harness.plans import SHAPING
from scripts.experiments.harness.skills import scratch_pad_tasks

CLEAN: Final = "clean"  # beside the same honest peers, without attackers
PEERS: Final = 4
TASKS: Final = scratch_pad_tasks()
SAMPLES: Final = 4  # of each held-out prompt, at temperature 1
CODE: Final = ("node/learner", "node/tasks", "scripts/attacks/poisoning")  # whose sources shape a run beside its plan


@dataclass(frozen=True)
class Condition:
    """How the victim learns."""

    settings: Settings = field(default_factory=dict)
    guard: type[Guard] = Guard


CONDITIONS: Final[Mapping[str, Condition]] = {
    "as it is": Condition(),
    "copied": Condition({"objective": {"research": {"free_text": "copy"}}}),
    "unguarded": Condition({"objective": {"research": {"free_text": "copy"}}}, guard=NoGuard),
    "alone": Condition({"learner": {"foreign_groups": 0}}),
}


class HailPlan(Struct, frozen=True):
    """One attack with one seed. Models are names of folders."""

    kind: str  # of ``payloads.ATTACKS``, or ``CLEAN``
    learns: str  # of ``CONDITIONS``
    attackers: int  # of ``PEERS``; the others are honest, in a run without attackers too
    attacked: int  # tasks that the attackers answer: the first of ``TASKS``
    seed: int
    rounds: int  # with the attackers
    after: int  # without them
    asleep: int  # rounds that a sleeper is honest for
    prompts: int  # held-out ones of each task
    victim: str
    honest: tuple[str, ...]

    harness: ClassVar[str] = "scripts.attacks.poisoning.hail_run"

    @property
    def condition(self) -> str:
        many = self.kind != CLEAN and ATTACKS[self.kind].crowd
        who = f"{CROWD} names beside {len(self.honest)}" if many else f"{self.attackers} of {PEERS}"
        return f"{self.learns}, {self.kind}, {who}"

    @property
    def result_type(self) -> type[HailResult]:
        return HailResult

    @property
    def key(self) -> str:
        learns = CONDITIONS[self.learns]
        config = configured(self.victim, self.seed, settings=learns.settings)
        shape = {"plan": msgspec.to_builtins(self), "config": config.model_dump(mode="json", include=SHAPING)}
        shape |= {"guard": learns.guard.__name__, "code": code()}
        return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]


class Measured(Struct, frozen=True):
    """Of the victim's own completions of held-out prompts, by task."""

    success: dict[str, float]
    payloads: dict[str, dict[str, float]]  # each payload's share, whatever the attack: by payload, by task


class HailResult(Struct, frozen=True):
    key: str
    seed: int
    seconds: float
    cpu_seconds: float
    plan: HailPlan
    reward: list[float]  # own, by round
    used: list[dict[str, int]]  # groups trained on, by peer, by round
    rejected: dict[str, int]
    harms: list[str]
    attacked: Measured  # after the last round with the attackers
    afterwards: Measured  # after the last round without them


def code() -> str:
    """Returns a hash of the sources of ``CODE``."""
    digest = hashlib.sha256()
    for file in sorted(file for folder in CODE for file in (REPOSITORY / folder).rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def measured(policy: Policy, prompts: int) -> Measured:
    engine, scorer = TorchEngine(policy, rows=256, seed=7), OwnProcessScorer(TASKS)
    success: dict[str, float] = {}
    payloads: dict[str, dict[str, float]] = {name: {} for name in PAYLOADS}
    for task, asked in held_out_prompts(TASKS, Part.TEST, prompts).items():
        groups = answered(
            policy.tokens, engine, scorer, TASKS[task], asked,
            samples=SAMPLES, temperature=1.0, seed=7, context=Network.of(policy.model).context,
        )  # fmt: skip
        said = [text for group in groups for text in group.texts]
        success[task] = fmean(reward for group in groups for reward in group.scores.rewards)
        for name, payload in PAYLOADS.items():
            payloads[name][task] = fmean(map(payload.found, said))
    return Measured(success, payloads)


def execute(
    plan: HailPlan, models: Path, is_orphaned: Callable[[], bool] = lambda: False, recordings: Path = RECORDINGS
) -> HailResult:
    """Runs ``plan`` on one thread. Raises ``InterruptedError`` once ``is_orphaned``, when no process waits for it."""
    torch.set_num_threads(1)
    began, cpu_began = time.monotonic(), time.process_time()
    rounds = plan.rounds + plan.after
    peers = {model: recorded(models / model, 100 + plan.seed, rounds, TASKS, recordings) for model in plan.honest}
    torch.manual_seed(plan.seed)
    learnt, learns = Learnt(), CONDITIONS[plan.learns]
    attacked = list(TASKS.values())[: plan.attacked]

    def announced_in(number: int) -> Iterator[tuple[str, Group]]:
        if is_orphaned():
            raise InterruptedError("the command that this run belongs to has ended")
        for model, by_round in peers.items():
            for group in by_round[number - 1]:
                yield model, group
        if plan.kind != CLEAN and number <= plan.rounds:
            yield from announced(
                plan.kind, attacked, attackers=plan.attackers, seed=plan.seed, number=number, asleep=plan.asleep
            )

    with tempfile.TemporaryDirectory() as folder:
        board = Board(Path(folder))
        made = learner_on(
            board, models / plan.victim, TASKS, plan.seed,
            report=learnt.note, guard=learns.guard, settings=learns.settings,
        )  # fmt: skip
        with made as (learner, intake, policy):
            rounds_beside(board, learner, intake, range(1, plan.rounds + 1), announced_in)
            at_parting = measured(policy, plan.prompts)
            rounds_beside(board, learner, intake, range(plan.rounds + 1, rounds + 1), announced_in)
            afterwards = measured(policy, plan.prompts)
    return HailResult(
        plan.key, plan.seed, time.monotonic() - began, time.process_time() - cpu_began, plan,
        learnt.reward, learnt.used, dict(sorted(learnt.rejected.items())), learnt.harms, at_parting, afterwards,
    )  # fmt: skip
