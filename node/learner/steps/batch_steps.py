"""The optimizer steps of one learner on a batch of groups: in passes that fit its devices, all of the steps or none.

``step.OptimizerSteps`` is the arithmetic; here is what it takes from the learner's settings, and what follows where
memory runs out in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from node.configuration import Config
from node.fit.candidates import CHUNK_TOKENS
from node.fit.fitted import Sizes
from node.learner.memory.phases import PhaseRunner
from node.learner.objective.batch import TrainingGroup
from node.learner.objective.forward import Network, PassSettings
from node.learner.objective.reference_policy import ReferencePolicy
from node.learner.steps.devices import LeadingDevice, StepTask
from node.learner.steps.optimizer import MasterAdamW
from node.learner.steps.step import BatchReport, BegunStep, OptimizerSteps
from node.learner.steps.undo import steps_or_nothing


class BatchSteps:
    """Call it from the learner's thread."""

    def __init__(
        self,
        config: Config,
        network: Network,
        optimizer: MasterAdamW,
        reference: ReferencePolicy,
        devices: LeadingDevice,
        passes: PassSettings,
        *,
        max_new_tokens: int,
        policy_version: Callable[[], int],
    ) -> None:
        """``max_new_tokens``: of the longest answer of any task. ``policy_version``: of the weights as they are."""
        self.passes = passes  # replaced when memory runs out
        self.whole_batch = config.learner.own_groups * config.learner.completions  # what a round generates
        self._objective, self._temperature = config.objective, config.engine.temperature
        self._optimizer, self._devices = optimizer, devices
        self._steps = OptimizerSteps(network, optimizer, config.objective, reference, devices)
        self._max_new_tokens, self._policy_version = max_new_tokens, policy_version

    def use(self, sizes: Sizes) -> None:
        """Takes passes of other sizes from now on."""
        chunk_tokens = self.passes.chunk_tokens
        if sizes.recompute and not self.passes.recompute:
            chunk_tokens = CHUNK_TOKENS
        self.passes = PassSettings(sizes.batch_tokens, sizes.recompute, chunk_tokens)

    @property
    def tokens_at_once(self) -> int:
        """Of one pass on each device."""
        return self.passes.batch_tokens * self._devices.count

    def take(
        self,
        groups: Sequence[TrainingGroup],
        phases: PhaseRunner,
        release: Callable[[], None],
        *,
        rate: float = 1.0,
        begun: BegunStep | None = None,
        measured: int | None = None,
    ) -> BatchReport:
        """Takes the steps on ``groups`` after those of ``begun``, at ``rate`` times the learning rate. Where memory
        runs out, everything is as before until they all are; on several devices nothing is repeated, and all of them
        end. ``release`` gives back what the engine holds. ``measured`` is ``StepTask.measured``."""

        def taken() -> BatchReport:
            task = self._task(groups, rate, measured)
            with self._devices.taking(task):
                return self._steps.take(task, begun)

        if self._devices.count > 1:
            return taken()
        return steps_or_nothing(phases, taken, self._optimizer, self._objective, release)

    def begin(self, begun: BegunStep, groups: Sequence[TrainingGroup]) -> None:
        """Adds the gradient of ``groups`` to ``begun``, for steps that are taken later."""
        task = self._task(groups)
        with self._devices.beginning(task):
            self._steps.begin(begun, task)

    def drop_begun(self) -> None:
        """Drops the gradient of what was begun, on all devices."""
        self._devices.drop_begun()
        self._optimizer.drop_gradients()

    @property
    def own_rate(self) -> float:
        """The learning rate as configured, or by the model's size."""
        return self._optimizer.rate

    def _task(self, groups: Sequence[TrainingGroup], rate: float = 1.0, measured: int | None = None) -> StepTask:
        return StepTask(
            tuple(groups),
            self.passes,
            self._temperature,
            max_new_tokens=self._max_new_tokens,
            whole_batch=self.whole_batch,
            rate=rate,
            policy_version=self._policy_version(),
            measured=measured,
        )
