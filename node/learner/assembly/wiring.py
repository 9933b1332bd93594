"""Puts a learner together from its parts. Nothing is loaded here, and nothing trains."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from node.averaging.weight_averager import WeightAverager
from node.configuration import DEFAULT_BATCH_TOKENS, Config, chosen
from node.engines.engine import Engine
from node.environments.conversation import most_tokens
from node.evaluation.while_training import EvaluationWhileTraining
from node.events import Event
from node.fit.fitted import Sizes
from node.learner.foreign.candidates import ForeignCandidates, ForeignGroups
from node.learner.foreign.conversation_checks import Replays
from node.learner.foreign.intake import RolloutIntake
from node.learner.generation.generation import Generation, RoundPlan, round_plan
from node.learner.generation.own_rollouts import RewardScorer
from node.learner.generation.schedule import schedule_of
from node.learner.influence.guard import Guard
from node.learner.loop import Learner
from node.learner.memory.device_memory import device_memory
from node.learner.memory.phases import PhaseRunner, SizePlan
from node.learner.objective.forward import PassSettings
from node.learner.objective.reference_policy import ReferencePolicy
from node.learner.round.learning import RoundLearning
from node.learner.round.measuring import Measuring
from node.learner.round.report import Reporting
from node.learner.round.scoring import RoundScoring
from node.learner.round.taking_back import TakingBack
from node.learner.state.learner_state import LearnerState
from node.learner.state.persistence import Persistence
from node.learner.steps.batch_steps import BatchSteps
from node.learner.steps.devices import ONE_DEVICE, LeadingDevice
from node.learner.steps.early_learning import EarlyLearning
from node.learner.steps.optimizer import MasterAdamW
from node.policy.policy import Policy
from node.stages.policy import network_of
from node.tasks.task import Task


@dataclass(frozen=True, slots=True, eq=False)
class Extras:
    """What a learner can do without."""

    persistence: Persistence | None = None
    averager: WeightAverager | None = None
    evaluation: EvaluationWhileTraining | None = None
    reference: ReferencePolicy | None = None  # made before a checkpoint; None: the policy as it is now is the reference
    passes: PassSettings | None = None  # None: as the configuration says
    size_plan: SizePlan | None = None  # how rows and passes begin and change; None: as engine and configuration say
    devices: LeadingDevice = ONE_DEVICE  # hold policy and optimizer, in shards where they are several


def learner_of(
    config: Config,
    policy: Policy,
    tasks: Mapping[str, Task],
    engine: Engine,
    scorer: RewardScorer,
    intake: RolloutIntake,
    optimizer: MasterAdamW,
    state: LearnerState,
    *,
    report: Callable[[Event], None],
    clock: Callable[[], float],
    extras: Extras = Extras(),  # frozen
) -> Learner:
    """Returns a learner whose engine has the weights; ``clock`` gives Unix time. Where ``state`` comes from a
    checkpoint, its tensors are loaded already."""
    reference = extras.reference or ReferencePolicy(policy.trainable(), config.objective)
    seed = f"{config.seed}/{config.name}"  # the name sets apart nodes that share a configuration
    draws = partial(_draws, seed)
    network = network_of(policy)
    passes = extras.passes or PassSettings(
        chosen(config.learner.batch_tokens, DEFAULT_BATCH_TOKENS), chosen(config.learner.recompute, False)
    )
    longest = max(map(most_tokens, tasks.values()))
    steps = BatchSteps(
        config, network, optimizer, reference, extras.devices, passes,
        max_new_tokens=longest,
        policy_version=lambda: state.policy_version,
    )  # fmt: skip

    def use(sizes: Sizes) -> None:
        engine.rows = sizes.rows
        steps.use(sizes)

    configured = Sizes(engine.rows, passes.batch_tokens, passes.recompute)
    plan = extras.size_plan or SizePlan(begin=configured, most=configured)
    phases = PhaseRunner(plan, use=use, report=report, clock=clock, memory=partial(device_memory, policy.device))
    generation = Generation(
        engine, tasks, policy.tokens, scorer, config.learner,
        temperature=config.engine.temperature,
        context=network.context,
    )  # fmt: skip
    schedule = schedule_of(config, generation, phases)
    early = EarlyLearning(config.objective, scorer, steps.begin, steps.drop_begun, lambda: steps.tokens_at_once)
    guard = Guard(
        state.influence,
        completions=config.learner.completions,
        staleness=config.learner.max_staleness,
        seed=seed,
    )

    def copies_free_text(task: str) -> bool:
        trusted = state.influence.standings.trusting and not state.hints.are_of_use(task)
        return trusted or config.objective.research.free_text == "copy"

    candidates = ForeignCandidates(
        intake, intake.tasks, policy.tokens, config.objective,
        context=network.context,
        copies_free_text=copies_free_text,
    )  # fmt: skip
    ahead = config.learner.max_staleness > 0

    def plan_of(round_number: int) -> RoundPlan:
        plan = round_plan(config.learner, list(tasks), seed, round_number)
        drawn = state.hints.drawn(
            config.learner.most_foreign_groups, list(tasks), state.success, draws("hint", round_number)
        )
        return replace(plan, hints=drawn)

    learner = Learner(
        config=config,
        policy=policy,
        optimizer=optimizer,
        state=state,
        own=schedule,
        plan_of=plan_of,
        early=early,
        foreign=ForeignGroups(intake, candidates, guard.admits, draws, ahead=ahead),
        intake=intake,
        scoring=RoundScoring(
            scorer, candidates, early, Replays(scorer, config.learner.replay_seconds), state.success.of
        ),
        learning=RoundLearning(
            config, tasks, state, engine, candidates, guard, early, steps, phases,
            release=schedule.release,
            draws=draws,
        ),
        averager=extras.averager,
        taking_back=TakingBack(state, guard, extras.averager, optimizer, phases, report, clock),
        measuring=Measuring(extras.evaluation, extras.persistence, phases, report, clock),
        reporting=Reporting(config, policy, engine, state, intake, report, clock),
        persistence=extras.persistence,
        phases=phases,
    )  # fmt: skip
    learner.own.publish(state.policy_version, policy.weights())
    return learner


def _draws(seed: str, purpose: str, round_number: int) -> random.Random:
    """Returns a round's random numbers for one purpose."""
    return random.Random(f"starling/{purpose}/{seed}/{round_number}")
