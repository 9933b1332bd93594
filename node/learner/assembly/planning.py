"""The learner's first step: plan what fits this machine's memory, before anything is loaded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import partial

import torch

from node.configuration import Config, DtypeName
from node.engines.vllm_backend.environment import environment_at
from node.events import Event, Planned
from node.fit.fitted import Sizes
from node.fit.machine import Machine
from node.fit.plan import FittedSizes, Plan, make_plan
from node.fit.planning import machine_here, trained_here
from node.fit.settings import DeviceKind, MemorySettings, with_settings
from node.fit.table import choice_line
from node.fit.workload import workload_of
from node.home import Home
from node.policy.device import choose_device, choose_dtype, device_memory_bytes
from node.policy.model_counting import counted_sizes
from node.policy.model_files import model_folder
from node.tasks.task import Task
from swarm.donors.donor_list import may_have_donors


def planned_config(
    home: Home,
    config: Config,
    tasks: Iterable[Task],
    report: Callable[[Event], None],
    fitted: FittedSizes | None = None,
) -> tuple[Config, MemorySettings, Sizes]:
    """Returns the configuration with every "auto" that costs memory resolved, the settings, and the sizes without
    ``fitted``, which what ran out may grow to again; reports the plan.

    Raises ``ConfigurationError`` for a model that does not fit, with what would.
    """
    device = choose_device(config.policy.device)
    dtype: DtypeName = "bfloat16" if choose_dtype(config.policy.dtype, device) is torch.bfloat16 else "float32"
    machine = learner_machine(home, config, device, dtype)
    sizes = counted_sizes(model_folder(config.policy.model))
    workload = workload_of(
        config,
        tasks,
        sizes,
        card_bytes=machine.device_bytes,
        vllm=environment_at(os.environ).installed(),
        has_donors=may_have_donors(home.donors),
    )
    make = partial(make_plan, config, sizes, machine, workload, kept=trained_here(home))
    plan = make()
    first = plan.settings
    if fitted is not None:
        plan = make(fitted=fitted)
    report(_event(config, plan))
    return with_settings(config, plan.settings), plan.settings, Sizes(first.rows, first.batch_tokens, first.recompute)


def _event(config: Config, plan: Plan) -> Planned:
    settings = plan.settings
    return Planned(
        time_seconds=time.time(),
        model=config.policy.model,
        choice=choice_line(plan),
        adapter_rank=settings.adapter_rank,
        four_bit=settings.four_bit,
        dtype=settings.dtype,
        rows=settings.rows,
        batch_tokens=settings.batch_tokens,
        recompute=settings.recompute,
        optimizer=settings.optimizer,
        averages=settings.averages,
        store_bytes=settings.store_bytes,
        host_bytes=plan.footprint.peak_bytes("host"),
        host_limit_bytes=plan.host_limit_bytes,
        device_bytes=None if plan.device_limit_bytes is None else plan.footprint.peak_bytes("device"),
        device_limit_bytes=plan.device_limit_bytes,
    )


def learner_machine(home: Home, config: Config, device: torch.device, dtype: DtypeName) -> Machine:
    """Returns what a learner may use of this machine."""
    kinds: dict[str, DeviceKind] = {"cpu": "cpu", "cuda": "cuda", "mps": "mps"}
    return machine_here(
        home,
        kinds[device.type],
        dtype,
        device_memory_bytes(device),
        max_memory_bytes=config.machine.max_memory_bytes,
    )
