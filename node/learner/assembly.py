"""Builds a learner that is ready for its first round, from a data directory and a configuration.

Nothing here trains: the rounds are in ``loop.py``, which is the next file to read.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from node.averaging.rules import rule_of
from node.averaging.weight_averager import WeightAverager
from node.checkpoints.checkpoints import BackgroundCheckpoints, read_newest
from node.configuration import Config
from node.engines.torch import TorchEngine
from node.evaluation.while_training import EvaluationWhileTraining
from node.events import Event, LearnerReady, Loading
from node.fit.fitted import Fitted, Sizes, fitted_with, write_fitted
from node.home import Home
from node.learner.foreign.intake import RolloutIntake
from node.learner.generation.generation import RewardScorer
from node.learner.generation.schedule import needs_own_weights
from node.learner.loop import Learner
from node.learner.memory.device_memory import total_memory_bytes
from node.learner.memory.freed_tensors import return_freed_tensors
from node.learner.memory.phases import SizePlan
from node.learner.objective.forward import Network, check_network
from node.learner.objective.other_policies import OtherPolicies
from node.learner.objective.pass_settings import PassSettings
from node.learner.optimizer import MasterAdamW
from node.learner.persistence import Persistence, restore
from node.learner.planning import planned_config
from node.policy.device import choose_device
from node.policy.policy import Policy
from node.state_sync.start_from_peers import publisher_of, start_from_peers, with_adopted_state
from node.tasks.registry import load_tasks
from node.tasks.task import Task
from swarm.client import SwarmClient
from swarm.cluster.cluster_files import cluster_files, has_cluster

log = logging.getLogger(__name__)


@contextmanager
def assembled(
    path: Path,
    config: Config,
    scorer: RewardScorer,
    report: Callable[[Event], None],
    began: float,
    should_stop: Callable[[], str | None] = lambda: None,
) -> Iterator[Learner]:
    """Yields a learner that continues from data directory ``path``; on leaving, its threads end and nothing is lost.

    ``began`` is ``time.monotonic()`` when the process started; ``should_stop`` ends waiting for the weights of peers.
    Raises ``ConfigurationError`` or ``StorageError``.
    """

    def loading(what: str) -> None:
        report(Loading(time_seconds=time.time(), what=what, seconds=time.monotonic() - began))

    home = Home(path)
    loading("tasks")
    tasks = load_tasks(config.tasks)
    memory_bytes = total_memory_bytes(choose_device(config.policy.device))
    fitted = fitted_with(home.fitted, config.policy.model, memory_bytes)
    config, settings, most = planned_config(home, config, tasks.values(), report, fitted)
    begin = Sizes(settings.rows, settings.batch_tokens)
    if begin != most:
        log.info("memory ran out before: beginning with %s instead of %s", begin, most)
    loading("policy")
    policy = Policy.load(config.policy, seed=config.seed)
    return_freed_tensors(policy.parameters)
    network = Network.of(policy.model)
    check_network(policy.model, network, policy.vocabulary, recompute=settings.recompute)
    loading("checkpoint")
    optimizer = _optimizer(policy, config)
    others = OtherPolicies(policy.trainable(), config.objective)  # before a checkpoint changes the policy
    newest = read_newest(home.checkpoints)
    for warning in newest.warnings:
        log.warning("%s; the checkpoint before it is used", warning)
    state, pool_position = restore(newest, home.checkpoints, policy, optimizer)
    restored_from = newest.path
    del newest  # its tensors are as large as the checkpoint
    if config.checkpoint.from_peers:
        loading("weights of peers")
    held = start_from_peers(home, config, policy, tuple(tasks), state, report, should_stop)
    if held is not None:
        optimizer = _optimizer(policy, config)
        state = with_adopted_state(state, held.advert, policy)
    state.influence.standings.trusting = config.learner.trust_peers or has_cluster(cluster_files(home.path))
    loading("engine")
    own_weights = needs_own_weights(config)
    engine = TorchEngine(
        policy,
        rows=settings.rows,
        seed=config.seed,
        owns_weights=own_weights,
        merge_adapters=settings.merge_adapters,
    )
    checkpoints = BackgroundCheckpoints(home.checkpoints, keep=config.checkpoint.keep)
    client = SwarmClient(home.swarm_socket)
    raising = SwarmClient(home.swarm_socket, store_bytes=settings.store_bytes)
    research = config.objective.research
    intake = RolloutIntake(client, tasks, config.learner, time.time, pool_position, research=research)
    weight_averager = _weight_averager(SwarmClient(home.swarm_socket), optimizer, policy, config, report)
    publisher = publisher_of(raising, config, policy, held, report, time.time)
    persistence = Persistence(
        checkpoints, config, policy, optimizer, report, time.time, publisher, save_beside=settings.save_beside
    )
    learner = Learner(
        config,
        policy,
        tasks,
        engine,
        scorer,
        intake,
        optimizer,
        state,
        report=report,
        clock=time.time,
        persistence=persistence,
        others=others,
        weight_averager=weight_averager,
        evaluation=_evaluation(config, policy, engine, scorer, tasks),
        passes=PassSettings(settings.batch_tokens, settings.recompute, settings.chunk_tokens),
        size_plan=SizePlan(
            begin,
            most=most,
            remember=partial(_remember, home.fitted, config.policy.model, memory_bytes),
            should_stop=should_stop,
        ),
    )
    report(_ready(config, policy, learner, restored_from, begin, memory_bytes, time.monotonic() - began))
    try:
        yield learner
    finally:
        learner.close()
        intake.close()
        publisher.close()
        if weight_averager is not None:
            weight_averager.close()
        checkpoints.close()


def _evaluation(
    config: Config, policy: Policy, engine: TorchEngine, scorer: RewardScorer, tasks: Mapping[str, Task]
) -> EvaluationWhileTraining:
    """Evaluates with the learner's own engine. One that owns its weights may hold older ones, and generate meanwhile:
    then each evaluation has an engine of its own, which needs memory as the learner's does, and is dropped after it."""

    def idle_engine() -> TorchEngine:
        return TorchEngine(policy, rows=engine.rows, seed=config.seed) if engine.owns_weights else engine

    context = Network.of(policy.model).context
    return EvaluationWhileTraining(config.evaluation, policy.tokens, idle_engine, scorer, tasks, context=context)


def _optimizer(policy: Policy, config: Config) -> MasterAdamW:
    return MasterAdamW(policy.trainable(), config.learner, adapted_parameters=policy.adapted_parameters)


def _remember(path: Path, model: str, memory_bytes: int, sizes: Sizes) -> None:
    """Writes down what the next start begins with."""
    before = fitted_with(path, model, memory_bytes)
    killed = before.learner_killed if before is not None else 0
    write_fitted(
        path,
        Fitted(
            model=model,
            memory_bytes=memory_bytes,
            rows=sizes.rows,
            batch_tokens=sizes.batch_tokens,
            learner_killed=killed,
        ),
    )


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


def _ready(
    config: Config,
    policy: Policy,
    learner: Learner,
    checkpoint: Path | None,
    sizes: Sizes,
    memory_bytes: int,
    seconds: float,
) -> LearnerReady:
    trainable = policy.trainable().values()
    return LearnerReady(
        time_seconds=time.time(),
        model=config.policy.model,
        family=policy.family.hex(),
        tokenizer=policy.tokens.fingerprint.hex(),
        parameters=policy.parameters,
        trainable_parameters=sum(p.numel() for p in trainable),
        device=str(policy.device),
        dtype=str(policy.dtype).removeprefix("torch."),
        tasks=tuple(learner.tasks),
        round=learner.state.round,
        checkpoint=str(checkpoint) if checkpoint is not None else None,
        seconds=seconds,
        rows=sizes.rows,
        batch_tokens=sizes.batch_tokens,
        memory_bytes=memory_bytes,
    )
