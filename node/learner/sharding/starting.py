"""From a policy and an optimizer that are whole, in main memory, to shards on several devices."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from node.configuration import Config
from node.events import Event, Fault
from node.learner.objective.forward import Network
from node.learner.objective.report import ObjectiveReport
from node.learner.sharding.device_processes import DeviceProcesses
from node.learner.sharding.messages import BeginSteps, DeviceStart, DropBegun, TakeSteps
from node.learner.sharding.process_group import DeviceGroup, reshard, shard_network, share_processors
from node.learner.sharding.sharded_adamw import ShardedAdamW
from node.learner.steps.devices import LeadingDevice, StepTask
from node.learner.steps.optimizer import MasterAdamW
from node.policy.device import choose_device
from node.policy.device_faults import detail_of, is_out_of_memory
from node.policy.policy import Policy
from node.policy.whole_tensors import WholeTensors
from protocol.errors import AcceleratorError, ConfigurationError
from swarm.exit_codes import ExitCode

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class ShardedPolicy(Policy):
    """A policy whose weights are divided among the devices. Only ``LearnerDevices`` runs its model."""

    whole: Callable[[], WholeTensors] = field(kw_only=True)

    def weights(self) -> Mapping[str, Tensor]:
        return self.whole()


class LearnerDevices(LeadingDevice):
    """The learner on several devices, which is the first of them."""

    def __init__(
        self, group: DeviceGroup, network: Network, processes: DeviceProcesses, ran_out: Callable[[], None]
    ) -> None:
        """``ran_out`` is called when memory ran out in a step on this device."""
        self._group, self._network, self._processes, self._ran_out = group, network, processes, ran_out
        self.rank, self.count = group.rank, group.count

    def added(self, report: ObjectiveReport) -> ObjectiveReport:
        return self._group.added(report)

    def taking(self, task: StepTask) -> AbstractContextManager[None]:
        return self._all_doing(TakeSteps(task))

    def beginning(self, task: StepTask) -> AbstractContextManager[None]:
        return self._all_doing(BeginSteps(task))

    def drop_begun(self) -> None:
        self._processes.tell(DropBegun())

    @contextmanager
    def _all_doing(self, message: TakeSteps | BeginSteps) -> Iterator[None]:
        """Within the context all devices do what ``message`` says.

        Whatever fails there leaves the others in the middle of it, so nothing is repeated in this process: raises
        ``AcceleratorError``.
        """
        self._processes.tell(message)
        try:
            yield
        except Exception as error:
            if is_out_of_memory(error):
                self._ran_out()
            raise AcceleratorError(
                f"a step on {self.count} devices failed ({detail_of(error)}): the learner is started again from its "
                "last checkpoint, on all of them"
            ) from error
        reshard(self._network)


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
