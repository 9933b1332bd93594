"""Loads what a learner needs, from a data directory and a configuration, and keeps it for as long as it runs.

``wiring.py`` puts the parts together. Nothing here trains: rounds are in ``loop.py``, which is the next file to read.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from node.averaging.rules import rule_of
from node.averaging.weight_averager import WeightAverager
from node.checkpoints.checkpoints import BackgroundCheckpoints
from node.configuration import DEFAULT_STORE_BYTES, Config, chosen, devices_faults, stages_faults
from node.engines.backends import EngineParts, engine_of
from node.engines.engine import Engine
from node.engines.torch import TorchEngine
from node.evaluation.while_training import EvaluationWhileTraining
from node.events import Event, LearnerReady, Loading, RoundDone
from node.fit.fitted import FLOORS, Sizes, fitted_with, remember, remember_smaller_passes
from node.fit.settings import MemorySettings
from node.home import Home
from node.learner.assembly.checks import checks_of
from node.learner.assembly.environment_audits import EnvironmentAudits, audit_fault
from node.learner.assembly.machines import over_machines
from node.learner.assembly.planning import planned_config
from node.learner.assembly.wiring import Extras, learner_of
from node.learner.foreign.intake import RolloutIntake
from node.learner.generation.generation import check_prompt_room
from node.learner.generation.own_rollouts import RewardScorer
from node.learner.generation.schedule import needs_own_weights
from node.learner.loop import Learner
from node.learner.memory.abandoned import WaitAbandoned
from node.learner.memory.device_memory import return_freed_tensors, total_memory_bytes
from node.learner.memory.phases import SizePlan
from node.learner.objective.forward import Network, PassSettings, check_network
from node.learner.objective.reference_policy import ReferencePolicy
from node.learner.sharding.starting import put_in_shards, start_other_devices
from node.learner.state.continuing import continued
from node.learner.state.learner_state import LearnerState
from node.learner.state.persistence import Persistence
from node.learner.steps.devices import ONE_DEVICE, LeadingDevice
from node.learner.steps.optimizer import MasterAdamW
from node.policy.device import choose_device
from node.policy.policy import Policy
from node.stages.attendance import Attendance
from node.stages.checking import StageChecks
from node.stages.gathering import Gathering
from node.state_sync.measured_success import SuccessMeasurement
from node.state_sync.publishing import HeldState, StatePublisher
from node.state_sync.start_from_peers import start_from_peers, with_adopted_state
from node.tasks.registry import load_tasks
from node.tasks.task import Task
from protocol.errors import ConfigurationError
from swarm.client import SwarmClient
from swarm.cluster.cluster_files import cluster_files, has_cluster

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Sized:
    """What fits this machine's memory."""

    config: Config  # without an "auto" that costs memory
    settings: MemorySettings
    begin: Sizes
    most: Sizes
    memory_bytes: int  # of the device, in all


@dataclass(slots=True)
class _Restored:
    """Where training goes on from."""

    optimizer: MasterAdamW
    reference: ReferencePolicy
    state: LearnerState
    pool_position: Mapping[str, Any] | None
    held: HeldState | None  # the weights that were adopted from peers
    checkpoint: Path | None


@contextmanager
def assembled(
    path: Path,
    config: Config,
    scorer: RewardScorer,
    report: Callable[[Event], None],
    began: float,
    should_stop: Callable[[], str | None] = lambda: None,
    attendance: Attendance | None = None,
) -> Iterator[Learner]:
    """Yields a learner that continues from data directory ``path``; on leaving, its threads end and nothing is lost.

    ``began`` is ``time.monotonic()`` when loading began; ``should_stop`` ends waiting for the weights of peers.
    ``attendance`` is that of the process: it says which machines need not be waited for now, and later when rounds are
    to end for a new plan. Raises ``ConfigurationError`` or ``StorageError``, and ``WaitAbandoned`` where it is to stop
    before there are as many machines as ``policy.stages``.
    """

    def loading(what: str) -> None:
        report(Loading(time_seconds=time.time(), what=what, seconds=time.monotonic() - began))

    home = Home(path)
    for fault in (*devices_faults(config), *stages_faults(config)):
        raise ConfigurationError(f"{fault.key} {fault.found}: {fault.remedy}")
    loading("tasks")
    tasks = load_tasks(config.tasks)
    with ExitStack() as stack:
        policy: Policy
        if config.policy.stages:
            loading("machines")
            over = over_machines(home, config, tasks.values(), report, should_stop, stack, attendance or Attendance())
            if over is None:
                raise WaitAbandoned
            sizes = Sizes(over.settings.rows, over.settings.batch_tokens, over.settings.recompute)
            memory_bytes = total_memory_bytes(over.policy.device)
            fitted = fitted_with(home.fitted, config.policy.model, memory_bytes)
            begin = sizes if fitted is None else fitted.sizes.within(sizes)
            sized = _Sized(over.config, over.settings, begin, sizes, memory_bytes)
            policy, checks = over.policy, checks_of(over, home, tasks)
            regain = over.gathering.regained if checks is None else checks.regained
            floors = replace(FLOORS, recompute=config.learner.recompute == "auto")
            report = _after_rounds(report, over.gathering, checks)
        else:
            sized, regain = _sized(home, config, tasks, report), None
            loading("policy")
            policy, floors = _policy(sized, may_recompute=config.learner.recompute == "auto")
        check_prompt_room(tasks, policy.tokens, Network.of(policy.model).context)
        ran_out = partial(remember_smaller_passes, home.fitted, config.policy.model, sized.memory_bytes, sized.begin)
        others = start_other_devices(home.devices_meeting, sized.config, policy, report, ran_out, stack)
        measure = SuccessMeasurement(policy, tasks, scorer, rows=sized.settings.rows, draws=random.SystemRandom())
        restored = _restored(home, sized.config, policy, tasks, measure, report, should_stop, loading)
        if regain is not None:
            loading("machines")  # now with the factors of the checkpoint
            if not regain(should_stop):
                raise WaitAbandoned
        devices: LeadingDevice = ONE_DEVICE
        if others is not None:
            loading("devices")
            sharded, restored.optimizer, devices = put_in_shards(
                home.devices_meeting, sized.config, policy, restored.optimizer, others, ran_out
            )
            policy, restored.reference = sharded, ReferencePolicy(sharded.trainable(), sized.config.objective)
        loading("engine")
        size_plan = SizePlan(
            sized.begin,
            most=sized.most,
            floors=floors,
            remember=partial(remember, home.fitted, config.policy.model, sized.memory_bytes),
            should_stop=should_stop,
            regain=regain,
        )
        learner = _learner(home, sized, policy, restored, tasks, scorer, report, size_plan, devices, stack)
        seconds = time.monotonic() - began
        report(_ready(sized, policy, tuple(tasks), restored, seconds))
        yield learner


def _after_rounds(
    report: Callable[[Event], None], gathering: Gathering, checks: StageChecks | None
) -> Callable[[Event], None]:
    """Returns ``report`` which after each round checks a machine, where that is due, tells what all of them did, and
    looks for those that are missing."""

    def told(event: Event) -> None:
        report(event)
        if isinstance(event, RoundDone):
            if checks is not None:
                checks.in_turn()
            gathering.round_done()

    return told


def _sized(home: Home, config: Config, tasks: Mapping[str, Task], report: Callable[[Event], None]) -> _Sized:
    memory_bytes = total_memory_bytes(choose_device(config.policy.device))
    fitted = fitted_with(home.fitted, config.policy.model, memory_bytes)
    config, settings, most = planned_config(home, config, tasks.values(), report, fitted)
    begin = Sizes(settings.rows, settings.batch_tokens, settings.recompute)
    if begin != most:
        log.info("memory ran out before: beginning with %s instead of %s", begin, most)
    return _Sized(config, settings, begin, most, memory_bytes)


def _policy(sized: _Sized, *, may_recompute: bool) -> tuple[Policy, Sizes]:
    """Returns the policy, and what sizes may come down to when memory runs out: recomputation only where
    ``may_recompute`` and the architecture allow it."""
    section = sized.config.policy
    if sized.config.learner.devices > 1:  # no device is to hold all of it
        section = section.model_copy(update={"device": "cpu"})
    policy = Policy.load(section)
    return_freed_tensors(policy.parameters)
    network = Network.of(policy.model, policy.tokens.vocabulary)
    check_network(policy.model, network, recompute=sized.settings.recompute)
    if sized.settings.recompute or not may_recompute:
        return policy, FLOORS
    try:
        check_network(policy.model, network, recompute=True)
    except ConfigurationError as error:
        log.info("memory that runs out is not answered by recomputation: %s", error)
        return policy, FLOORS
    return policy, replace(FLOORS, recompute=True)


def _restored(
    home: Home,
    config: Config,
    policy: Policy,
    tasks: Mapping[str, Task],
    measure: SuccessMeasurement,
    report: Callable[[Event], None],
    should_stop: Callable[[], str | None],
    loading: Callable[[str], None],
) -> _Restored:
    """Loads the newest whole checkpoint into ``policy``; where the configuration says so, or where all checkpoints are
    damaged and it allows that, the weights of peers."""
    loading("checkpoint")
    optimizer = _optimizer(policy, config)
    reference = ReferencePolicy(policy.trainable(), config.objective)  # before a checkpoint changes the policy
    found = continued(home.checkpoints, policy, optimizer)
    state = found.state
    if found.has_lost_all and config.checkpoint.recover_from_peers:
        config = config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"from_peers": True})})
    damaged = found.event(time.time(), asks_peers=config.checkpoint.from_peers)
    if damaged is not None:
        report(damaged)
    if config.checkpoint.from_peers:
        loading("weights of peers")
    held = start_from_peers(home, config, policy, tuple(tasks), state, report, should_stop, measure)
    if held is not None:
        optimizer = _optimizer(policy, config)
        state = with_adopted_state(state)
    state.influence.standings.trusting = config.learner.trust_peers or has_cluster(cluster_files(home.path))
    return _Restored(optimizer, reference, state, found.pool_position, held, found.checkpoint)


def _learner(
    home: Home,
    sized: _Sized,
    policy: Policy,
    restored: _Restored,
    tasks: Mapping[str, Task],
    scorer: RewardScorer,
    report: Callable[[Event], None],
    size_plan: SizePlan,
    devices: LeadingDevice,
    stack: ExitStack,
) -> Learner:
    """Returns the learner; ``stack`` ends its threads and those of its parts, its own first."""
    config, settings, optimizer = sized.config, sized.settings, restored.optimizer
    parts = EngineParts(
        home, config, policy, settings.rows, settings.merge_adapters, needs_own_weights(config), report, time.time
    )
    engine = engine_of(parts, stack)
    checkpoints = BackgroundCheckpoints(home.checkpoints, keep=config.checkpoint.keep)
    stack.callback(checkpoints.close)
    weight_averager = _weight_averager(SwarmClient(home.swarm_socket), optimizer, policy, config, report)
    if weight_averager is not None:
        stack.callback(weight_averager.close)
    raising = SwarmClient(home.swarm_socket, store_bytes=settings.store_bytes)
    publisher = StatePublisher(
        raising,
        policy.weights(),
        family=policy.family,
        every_rounds=config.checkpoint.publish_every_rounds,
        store_bytes=chosen(config.swarm.store_bytes, DEFAULT_STORE_BYTES),
        report=report,
        clock=time.time,
        held=restored.held,
    )
    stack.callback(publisher.close)
    client, research = SwarmClient(home.swarm_socket), config.objective.research
    audits = EnvironmentAudits(
        tasks, partial(audit_fault, section=config.tasks, records=home.audits), report, time.time,
        round_number=lambda: restored.state.round,
    )  # fmt: skip
    stack.callback(audits.close)
    intake = RolloutIntake(client, audits.shared, config.learner, time.time, restored.pool_position, research=research)
    stack.callback(intake.close)
    persistence = Persistence(
        checkpoints, config, policy, optimizer, report, time.time, publisher,
        save_beside=settings.save_beside,
        saved_round=restored.state.round,
    )  # fmt: skip
    extras = Extras(
        persistence,
        weight_averager,
        _evaluation(config, policy, engine, scorer, tasks),
        restored.reference,
        PassSettings(settings.batch_tokens, settings.recompute, settings.chunk_tokens),
        size_plan,
        devices,
    )
    learner = learner_of(
        config, policy, tasks, engine, scorer, intake, optimizer, restored.state,
        report=report,
        clock=time.time,
        extras=extras,
    )  # fmt: skip
    stack.callback(learner.close)
    return learner


def _evaluation(
    config: Config, policy: Policy, engine: Engine, scorer: RewardScorer, tasks: Mapping[str, Task]
) -> EvaluationWhileTraining:
    """Evaluates with the learner's own engine. One that owns its weights may hold older ones, and generate meanwhile:
    then each evaluation has an engine of its own, which needs memory as the learner's does, and is dropped after it. Of
    a policy in shards there is no other engine; ``devices_faults`` sees to it that it holds the present weights."""
    own = config.learner.devices > 1

    def idle_engine() -> Engine:
        return TorchEngine(policy, rows=engine.rows, seed=config.seed) if engine.owns_weights and not own else engine

    context = Network.of(policy.model).context
    return EvaluationWhileTraining(config.evaluation, policy.tokens, idle_engine, scorer, tasks, context=context)


def _optimizer(policy: Policy, config: Config) -> MasterAdamW:
    return MasterAdamW(policy.trainable(), config.learner, adapted_parameters=policy.adapted_parameters)


def _weight_averager(
    client: SwarmClient, optimizer: MasterAdamW, policy: Policy, config: Config, report: Callable[[Event], None]
) -> WeightAverager | None:
    """Returns None where averaging is turned off. The averager has a client and a thread of its own: it waits long."""
    if config.averaging.every_rounds == 0:
        return None
    draws = random.Random(f"starling/averaging/{config.seed}/{config.name}")
    section = config.averaging
    rule, because = rule_of(section, sum(parameter.numel() for parameter in policy.trainable().values()))
    log.info("averaging weights as %s: %s", rule.encoding, because)
    return WeightAverager(client, optimizer, policy.family, section, rule, report=report, clock=time.time, random=draws)


def _ready(sized: _Sized, policy: Policy, tasks: tuple[str, ...], restored: _Restored, seconds: float) -> LearnerReady:
    trainable, sizes = policy.trainable().values(), sized.begin
    return LearnerReady(
        time_seconds=time.time(),
        model=sized.config.policy.model,
        family=policy.family.hex(),
        tokenizer=policy.tokens.fingerprint.hex(),
        parameters=policy.parameters,
        trainable_parameters=sum(p.numel() for p in trainable),
        device=str(policy.device),
        dtype=str(policy.dtype).removeprefix("torch."),
        tasks=tasks,
        round=restored.state.round,
        checkpoint=str(restored.checkpoint) if restored.checkpoint is not None else None,
        seconds=seconds,
        rows=sizes.rows,
        batch_tokens=sizes.batch_tokens,
        name=policy.label,
        memory_bytes=sized.memory_bytes,
    )
