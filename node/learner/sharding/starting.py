"""From a policy and an optimizer that are whole, in main memory, to shards on several devices."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

from node.configuration import Config
from node.events import Event, Fault
from node.learner.objective.forward import Network
from node.learner.sharding.device_processes import DeviceProcesses
from node.learner.sharding.learner_devices import LearnerDevices, ShardedPolicy
from node.learner.sharding.messages import DeviceStart
from node.learner.sharding.model import shard_network
from node.learner.sharding.process_group import DeviceGroup, share_processors
from node.learner.sharding.sharded_adamw import ShardedAdamW
from node.learner.steps.optimizer import MasterAdamW
from node.policy.device import choose_device
from node.policy.policy import Policy
from protocol.errors import AcceleratorError, ConfigurationError
from swarm.exit_codes import ExitCode

log = logging.getLogger(__name__)


def device_of(kind: str, rank: int) -> torch.device:
    """Returns the device of one process: on a CPU all have the same, of GPUs each has its own."""
    return torch.device("cuda", rank) if kind == "cuda" else torch.device(kind)


def check_cards(kind: str, devices: int) -> None:
    """Raises ``ConfigurationError`` where there are too few cards for the learner and an engine."""
    cards = torch.cuda.device_count() if kind == "cuda" else devices + 1
    if cards <= devices:
        raise ConfigurationError(
            f"learner.devices is {devices}, and this machine has {cards} GPUs, of which the engine needs one: set "
            f"learner.devices to {max(1, cards - 1)} or less"
        )


def start_other_devices(
    meeting: Path,
    config: Config,
    policy: Policy,
    report: Callable[[Event], None],
    ran_out: Callable[[], None],
    stack: ExitStack,
) -> DeviceProcesses | None:
    """Starts the processes of the learner's other devices, which load the model while this one continues; None where
    there are none. ``stack`` ends them. When one ends by itself, so does this process, and the supervisor starts all;
    where its memory ran out, ``ran_out`` is called before.

    Raises ``ConfigurationError`` where there are too few GPUs.
    """
    if config.learner.devices == 1:
        return None
    kind = choose_device(config.policy.device).type
    check_cards(kind, config.learner.devices)

    def end_all(because: str, its_memory_ran_out: bool) -> None:
        if its_memory_ran_out:
            ran_out()
        log.error("%s", because)
        reason = AcceleratorError.reason
        report(Fault(time_seconds=time.time(), kind=reason, detail=because, round=0, fatal=True))
        os._exit(ExitCode.FAULT)  # the main thread may be waiting for the process that is gone

    meeting.unlink(missing_ok=True)
    others = DeviceProcesses(other_starts(meeting, config, policy, kind), end_all)
    stack.callback(others.end)
    return others


def other_starts(meeting: Path, config: Config, policy: Policy, kind: str) -> list[DeviceStart]:
    """Returns how each of the other devices starts."""
    return [
        DeviceStart(
            rank=rank,
            count=config.learner.devices,
            device=str(device_of(kind, rank)),
            meeting=str(meeting),
            family=policy.family,
            policy=config.policy.model_copy(update={"device": "cpu"}).model_dump(mode="json"),
            learner=config.learner.model_dump(mode="json"),
            objective=config.objective.model_dump(mode="json"),
            log_level=config.log_level,
        )
        for rank in range(1, config.learner.devices)
    ]


def put_in_shards(
    meeting: Path,
    config: Config,
    policy: Policy,
    optimizer: MasterAdamW,
    processes: DeviceProcesses,
    ran_out: Callable[[], None],
) -> tuple[ShardedPolicy, ShardedAdamW, LearnerDevices]:
    """Divides policy and optimizer, which are whole and in main memory, among the devices; the caller drops both.

    Waits for the others to have loaded the model.
    """
    device, adapted_parameters = device_of(choose_device(config.policy.device).type, 0), policy.adapted_parameters
    share_processors(device, config.learner.devices)
    group = DeviceGroup(meeting, 0, config.learner.devices, device)
    masters, state = optimizer.masters(), optimizer.state()
    network = Network.of(policy.model, policy.tokens.vocabulary)
    shard_network(network, group.mesh)
    sharded = ShardedAdamW(
        group, policy.trainable(), config.learner, processes.tell, adapted_parameters=adapted_parameters
    )
    sharded.put(masters)
    if any(name.startswith("step.") for name in state):
        sharded.prepare()
        sharded.restore(state)
    sharded.steps_skipped = optimizer.steps_skipped
    fields = {each: getattr(policy, each) for each in policy.__dataclass_fields__}
    return (
        ShardedPolicy(**(fields | {"device": device}), whole=sharded.weights),
        sharded,
        LearnerDevices(group, network, processes, ran_out),
    )
