"""The learner's view of its devices: the policy that is divided among them, and the steps that all take together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from node.learner.objective.forward import Network
from node.learner.objective.report import ObjectiveReport
from node.learner.sharding.device_processes import DeviceProcesses
from node.learner.sharding.messages import BeginSteps, DropBegun, TakeSteps
from node.learner.sharding.model import reshard
from node.learner.sharding.process_group import DeviceGroup
from node.learner.steps.devices import StepTask
from node.policy.device_faults import detail_of, is_out_of_memory
from node.policy.policy import Policy
from node.policy.whole_tensors import WholeTensors
from protocol.errors import AcceleratorError


@dataclass(frozen=True, eq=False)
class ShardedPolicy(Policy):
    """A policy whose weights are divided among the devices. Only ``LearnerDevices`` runs its model."""

    whole: Callable[[], WholeTensors] = field(kw_only=True)

    def weights(self) -> Mapping[str, Tensor]:
        return self.whole()


class LearnerDevices:
    """``Devices`` of the learner, which is the first of them."""

    def __init__(
        self, group: DeviceGroup, network: Network, processes: DeviceProcesses, ran_out: Callable[[], None]
    ) -> None:
        """``ran_out`` is called when memory ran out in a step on this device."""
        self._group, self._network, self._processes, self._ran_out = group, network, processes, ran_out

    @property
    def rank(self) -> int:
        return self._group.rank

    @property
    def count(self) -> int:
        return self._group.count

    def sums(self, values: Sequence[float]) -> list[float]:
        return self._group.sums(values)

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
