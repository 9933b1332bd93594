"""One more device's share of the learner, in its process: the model's rows, their optimizer, and its part of tasks."""

from __future__ import annotations

from pathlib import Path

import torch

from node.configuration import LearnerSection, ObjectiveSection, PolicySection
from node.learner.memory.device_memory import return_freed_tensors
from node.learner.objective.forward import Network
from node.learner.objective.reference_policy import ReferencePolicy
from node.learner.sharding.messages import (
    BeginSteps,
    DeviceStart,
    DeviceTask,
    DropBegun,
    Gather,
    Prepare,
    Put,
    TakeSteps,
)
from node.learner.sharding.process_group import DeviceGroup, reshard, shard_network, share_processors
from node.learner.sharding.sharded_adamw import ShardRows
from node.learner.steps.optimizer import MasterAdamW
from node.learner.steps.step import BegunStep, OptimizerSteps
from node.policy.policy import Policy
from protocol.errors import ConfigurationError


class Device:
    def __init__(self, start: DeviceStart) -> None:
        """Loads the model's files and waits for the other devices. Raises ``ConfigurationError`` for another model."""
        policy = Policy.load(PolicySection.model_validate(start.policy))
        if policy.family != start.family:
            raise ConfigurationError(f"the files of {policy.label} have changed since the learner read them")
        return_freed_tensors(policy.parameters)
        device = torch.device(start.device)
        share_processors(device, start.count)
        self._group = DeviceGroup(Path(start.meeting), start.rank, start.count, device)
        self._network = Network.of(policy.model, policy.tokens.vocabulary)
        adapted_parameters = policy.adapted_parameters
        shard_network(self._network, self._group.mesh)
        trained = policy.trainable()
        self._optimizer = MasterAdamW(
            trained,
            LearnerSection.model_validate(start.learner),
            adapted_parameters=adapted_parameters,
            sums=self._group.sums,
        )
        objective = ObjectiveSection.model_validate(start.objective)
        reference = ReferencePolicy(trained, objective)
        self._steps = OptimizerSteps(self._network, self._optimizer, objective, reference, self._group)
        self._begun = BegunStep()
        self._rows = ShardRows(self._group, trained, self._optimizer)

    def do(self, task: DeviceTask) -> None:
        match task:
            case TakeSteps():
                begun, self._begun = self._begun, BegunStep()
                self._steps.take(task.task, begun)
                reshard(self._network)
            case BeginSteps():
                self._steps.begin(self._begun, task.task)
                reshard(self._network)
            case DropBegun():
                self._begun.clear()
                self._optimizer.drop_gradients()
            case Prepare():
                self._optimizer.prepare()
            case Gather():
                self._rows.give(task.name)
            case Put():
                self._rows.take(task)
