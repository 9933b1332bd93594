"""A policy over several machines: which they are, which layers each holds, and what this one loads of the model."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache

from node.configuration import Config, DtypeName, chosen
from node.engines.donors.donor_source import SwarmDonors
from node.events import Event
from node.fit.candidates import ADAPTER_RANK
from node.fit.planning import trained_here
from node.fit.settings import MemorySettings, with_settings
from node.fit.stages.checks import missing_for_checks
from node.fit.stages.plan import Pace, StageMachine, StagePlan, plan_stages
from node.fit.workload import workload_of
from node.home import Home
from node.learner.assembly.planning import learner_machine
from node.learner.memory.device_memory import return_freed_tensors
from node.policy.device import choose_device, choose_dtype
from node.policy.held_layers import hold_factors, hold_layers, layers_of
from node.policy.model_counting import counted_sizes
from node.policy.model_files import model_folder
from node.policy.policy import Policy
from node.quantities import size
from node.stages.attendance import Attendance
from node.stages.cut import check_cut
from node.stages.gathering import Gathering, ShouldStop
from node.stages.pace import head_pace, layer_pace
from node.stages.policy import StagedPolicy
from node.stages.remote_stage import StageExpected
from node.stages.stage_source import LentStages
from node.stages.stages import Stages
from node.stages.worker import StageWorker
from node.tasks.task import Task
from protocol.errors import ConfigurationError
from protocol.streams.lend_messages import LendTerms

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OverMachines:
    """What is loaded, and with which settings it fits."""

    policy: StagedPolicy
    config: Config  # without an "auto" that costs memory
    settings: MemorySettings
    gathering: Gathering
    checker: StageWorker | None  # for ``StageChecks``; None where memory has no room for a layer more


def over_machines(
    home: Home,
    config: Config,
    tasks: Iterable[Task],
    report: Callable[[Event], None],
    should_stop: ShouldStop,
    stack: ExitStack,
    attendance: Attendance,
) -> OverMachines | None:
    """Waits for ``policy.stages`` machines, or fewer as ``attendance`` has it, divides the model among them, and loads
    what this one holds; None where the learner is to stop first. ``stack`` ends the connections.

    Raises ``ConfigurationError`` for a model that cannot be divided, or does not fit all of them together.
    """
    config = _settled(home, config)
    device = choose_device(config.policy.device)
    dtype: DtypeName = "bfloat16" if config.policy.dtype == "bfloat16" else "float32"
    folder = model_folder(config.policy.model)
    owner = learner_machine(home, config, device, dtype)
    sizes = counted_sizes(folder)
    policy = Policy.without_weights(config.policy)
    empty = policy.separate()
    layers_of(policy)  # raises where they cannot be divided, before anybody waits
    width = int(policy.base.config.hidden_size)
    expected = StageExpected(policy.family, sizes.layers, width, policy.dtype)
    donors = SwarmDonors(home.donors, home.swarm_socket, _terms(config, policy, dtype))
    workload = workload_of(config, tasks, sizes)

    @cache
    def paces() -> tuple[Pace, Pace]:
        """Measured once machines are there, since a node's other processes compute while they start."""
        measured = layer_pace(StageWorker(policy, folder), sizes), head_pace(sizes, device, policy.dtype)
        hold_factors(policy)
        return measured

    def planned(machines: Sequence[StageMachine]) -> StagePlan:
        return plan_stages(config, sizes, owner, *paces(), machines, workload, kept=trained_here(home))

    gathering = Gathering(
        LentStages(donors, expected),
        config.policy.stages,
        planned,
        report,
        time.time,
        time.monotonic,
        time.sleep,
        attendance,
    )
    stack.callback(gathering.close)
    attendance.starts(time.monotonic(), goes_on=trained_here(home) is not None)
    while True:
        plan = gathering.gathered(should_stop)
        if plan is None:
            return None
        stages = Stages(policy.trainable(), [range(each.first, each.last) for each in plan.held[1:]], gathering.lost)
        if gathering.seat(stages, plan):
            break
    own = plan.held[0].last
    hold_layers(policy, folder, range(own), ends=True, factors=False)
    return_freed_tensors(sum(p.numel() for p in policy.model.parameters() if not p.is_meta))
    check_cut(policy.base, own)
    staged = StagedPolicy.of(policy, own, stages, plan.order, plan.batches)
    missing = missing_for_checks(plan, sizes, workload, owner.device)
    if missing > 0:
        log.warning(
            "machines are not asked for samples, which would take %s more than this one has beside learning: give it "
            "more with machine.max_memory, or a model of smaller layers",
            size(missing),
        )
    checker = StageWorker(empty, folder) if missing <= 0 else None
    return OverMachines(staged, with_settings(config, plan.settings), plan.settings, gathering, checker)


def _settled(home: Home, config: Config) -> Config:
    """Returns the configuration with what machines must be told of the model before they are counted."""
    kept = trained_here(home)
    rank = chosen(config.policy.adapter_rank, ADAPTER_RANK if kept is None else kept.adapter_rank)
    if rank == 0:
        raise ConfigurationError(
            f"policy.stages is {config.policy.stages}, and the checkpoints of {home.path} are of whole weights, which "
            "are not divided among machines: use another directory with --home, or set policy.stages = 0"
        )
    device = choose_device(config.policy.device)
    dtype = str(choose_dtype(config.policy.dtype, device)).removeprefix("torch.")
    return config.model_copy(
        update={"policy": config.policy.model_copy(update={"adapter_rank": rank, "four_bit": False, "dtype": dtype})}
    )


def _terms(config: Config, policy: Policy, dtype: DtypeName) -> LendTerms:
    """Returns what a machine must load to hold layers of the policy."""
    return LendTerms(
        model=config.policy.model,
        adapter_rank=chosen(config.policy.adapter_rank, 0),
        four_bit=False,
        chat=config.policy.chat,
        family=policy.family,
        layers=dtype,
    )
