"""AdamW on float32 weights, whatever the policy computes in, with moments of one of three kinds.

A policy in bfloat16 would lose most small steps: at learning rate 1e-6 an update is below half a unit in the last place
of nearly every weight. So a float32 master copy of each such parameter is kept and rounded after every step. A step
whose gradient is not finite changes nothing, neither weights nor moments, and is counted. A step whose gradient is zero
throughout, as of a batch that was filtered out, changes nothing either: otherwise momentum alone would move weights.

``learner.optimizer`` says where masters and moments are (``node.fit.optimizer_size`` has their bytes): "adamw" keeps
the moments in float32 beside the weights, "adamw8bit" in 8 bits (``adamw.eight_bit_moments``), and "host" keeps float32
masters and moments in main memory, where the step is taken, slice by slice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from node.configuration import LearnerSection, OptimizerName, chosen
from node.learner.memory.errors import completed
from node.learner.steps.adamw.moments import moments_of
from node.learner.steps.adamw.saved_moments import of_shape, saved_moments
from node.learner.steps.adamw.slices import Scratch, slices_of
from node.learner.steps.gradients import GradientAccumulator, shard_of

# Two points joined by a power law: what suits the built-in models, and what was published for whole models of 0.5 to 3
# billion parameters (F-TIS, arXiv 2605.22537).
SMALL_PARAMETERS: Final = 5e5
SMALL_RATE: Final = 3e-4
LARGE_PARAMETERS: Final = 6e8
LARGE_RATE: Final = 1e-6
# An adapter's best rate is about ten times that of training the whole model, at any rank, by reinforcement learning too
# ("LoRA Without Regret", Schulman and Thinking Machines Lab, 2025). Never above the small models' rate, which is the
# highest that was tried here.
ADAPTER_FACTOR: Final = 10.0


@dataclass(frozen=True, slots=True)
class StepReport:
    gradient_norm: float  # before clipping; may be infinite or NaN when the step was skipped
    taken: bool  # False where the gradient was not finite, or zero throughout


class MasterAdamW:
    """AdamW over named parameters, with clipping by the gradient's global norm.

    Of parameters in shards it keeps the masters and moments of the rows that this device holds, and all of its tensors
    are of those; every device has one, and all take their steps together.
    """

    def __init__(
        self,
        trainable: Mapping[str, torch.nn.Parameter],
        section: LearnerSection,
        *,
        adapted_parameters: int = 0,
        sums: Callable[[list[float]], list[float]] = lambda own: own,
    ) -> None:
        """``adapted_parameters`` is the size of the model under an adapter, 0 where whole weights are trained; it
        decides an automatic learning rate. ``sums`` adds up numbers of all devices (``sharding.devices``)."""
        self._parameters: dict[str, Tensor] = {name: shard_of(p) for name, p in trainable.items()}
        self._sums = sums
        self.accumulated = GradientAccumulator(trainable)
        kind: OptimizerName = chosen(section.optimizer, "adamw")
        devices = {p.device for p in self._parameters.values()}
        self._device = torch.device("cpu") if kind == "host" or not devices else devices.pop()
        self._copied = frozenset(
            name for name, p in self._parameters.items() if p.dtype != torch.float32 or p.device != self._device
        )  # where the master is not the parameter itself
        self._masters = {
            name: p.detach().to(self._device, torch.float32, copy=name in self._copied)
            for name, p in self._parameters.items()
        }
        self._moments = moments_of(kind, self._masters)
        self._clip, self._weight_decay = section.gradient_clip, section.weight_decay
        if section.learning_rate == "auto":
            trained = sum(p.numel() for p in trainable.values())
            self._rate = learning_rate_for(adapted_parameters or trained, adapter=adapted_parameters > 0)
        else:
            self._rate = section.learning_rate
        self.steps_skipped = 0

    @property
    def rate(self) -> float:
        """The learning rate as configured, or by the model's size; ``rate_scale`` is times it."""
        return self._rate

    def prepare(self) -> None:
        """Allocates the moments, as the first step does otherwise. Raises what torch raises when out of memory; what
        was allocated until then stays, and the call can be repeated."""
        for moments in dict.fromkeys(self._moments.values()):
            moments.prepare()

    @torch.no_grad()
    def step(self, *, rate_scale: float = 1.0, divide_by: float = 1.0) -> StepReport:
        """Takes one step on the gradients accumulated, those in the parameters' ``grad`` included, and drops them.

        The learning rate is ``rate_scale`` times the configured one, the gradient is divided by ``divide_by`` first.

        A step is taken whole or not at all. Where memory runs out before the first weight, moment or counter has
        changed, it raises what torch raises; the caller drops the gradients and computes them again. From then on only
        the CPU's operator for 8 bits allocates (``STEP_BYTES``), and an operation that runs out all the same is done
        again on the spot: ``HalfWrittenError`` where even that runs out.
        """
        gradients = {name: gradient.reshape(-1) for name, gradient in self.accumulated.gradients().items()}
        norm = math.sqrt(self._sums([_norm(gradients) ** 2])[0]) / divide_by
        taken = math.isfinite(norm) and norm > 0
        if taken:
            self.prepare()
            scratch = self._scratch(gradients)
            clip, rate = _clip_factor(norm, self._clip) / divide_by, self._rate * rate_scale
            while gradients:
                name, gradient = gradients.popitem()
                self._step(name, gradient, clip, rate, scratch)
                self.accumulated.drop_one(name)  # its memory is free for the rest of the step
        elif norm != 0:
            self.steps_skipped += 1
        self.drop_gradients()
        return StepReport(norm, taken)

    def drop_gradients(self) -> None:
        """Forgets what has been accumulated for a step."""
        self.accumulated.drop()

    def _scratch(self, gradients: Mapping[str, Tensor]) -> Scratch:
        """Returns room for the slices of all ``gradients``."""
        device = next(p.device for p in self._parameters.values())
        dtypes = {tensor.dtype for name in gradients for tensor in (gradients[name], self._parameters[name])}
        return Scratch(self._device, device, max(gradient.numel() for gradient in gradients.values()), dtypes)

    def _step(self, name: str, gradient: Tensor, clip: float, rate: float, scratch: Scratch) -> None:
        """Moves one parameter by its ``gradient`` (N,), which is overwritten."""
        parameter, master, moments = self._parameters[name], self._masters[name], self._moments[name]

        def step_slice(index: int, part: slice) -> None:
            clipped = completed(lambda: scratch.gradient(gradient[part], clip))
            completed(lambda: moments.step(name, index, part, clipped, rate, self._weight_decay))
            if name in self._copied:
                completed(lambda: scratch.write(parameter.detach().view(-1)[part], master.view(-1)[part]))

        for index, part in enumerate(slices_of(gradient.numel(), self._device)):
            step_slice(index, part)

    def masters(self) -> Mapping[str, Tensor]:
        """Returns the float32 weights that steps are taken on, by name, as live tensors."""
        return dict(self._masters)

    @torch.no_grad()
    def put(self, weights: Mapping[str, Tensor]) -> None:
        """Replaces the weights by float32 ones, one for every master and of its shape. The moments stay."""

        def write() -> None:
            for name, master in self._masters.items():
                master.copy_(weights[name])
            self._round_to_parameters()

        completed(write)

    def _round_to_parameters(self) -> None:
        for name in self._copied:
            self._parameters[name].copy_(self._masters[name])

    def state(self) -> Mapping[str, Tensor]:
        """Returns everything a continued run needs, as live tensors by name: moments, and master weights where kept."""
        tensors = {f"master.{name}": self._masters[name] for name in self._masters if name in self._copied}
        for name, moments in self._moments.items():
            tensors |= {f"{key}.{name}": value for key, value in moments.state(name).items()}
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restores what ``state`` returned, of any kind of optimizer, for parameters that were restored before.

        Raises ``StorageError`` where a tensor is missing or of another shape; then nothing has changed.
        """
        self.restoring(tensors)()

    def restoring(self, tensors: Mapping[str, Tensor]) -> Callable[[], None]:
        """Checks ``tensors`` as ``restore`` does, and returns what puts them in place and cannot fail."""
        shapes = {name: master.shape for name, master in self._masters.items()}
        masters = {
            name: of_shape(tensors, f"master.{name}", shape)
            for name, shape in shapes.items()
            if name in self._copied or f"master.{name}" in tensors
        }
        moments = {name: saved_moments(tensors, name, shape) for name, shape in shapes.items()}

        @torch.no_grad()
        def put_in_place() -> None:
            for name, master in masters.items():
                self._masters[name].copy_(master)
            for name, saved in moments.items():
                if saved is not None:
                    self._moments[name].restore(name, saved)
            self._round_to_parameters()

        return put_in_place


def _norm(gradients: Mapping[str, Tensor]) -> float:
    """Returns the Euclidean norm of all gradients together, summed in float32."""
    norms = [
        torch.linalg.vector_norm(gradient[part], dtype=torch.float32)
        for gradient in gradients.values()
        for part in slices_of(gradient.numel(), gradient.device)
    ]
    return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0


def _clip_factor(norm: float, most: float) -> float:
    """Returns what brings the norm down to ``most``, as ``torch.nn.utils.clip_grad_norm_`` computes it."""
    return min(1.0, most / (norm + 1e-6))


def learning_rate_for(parameters: int, *, adapter: bool = False) -> float:
    """Returns the learning rate for a model of so many parameters, trained whole or by an ``adapter``.

    It lies between the two points' rates for a whole model, and is constant outside of them.
    """
    slope = math.log(LARGE_RATE / SMALL_RATE) / math.log(LARGE_PARAMETERS / SMALL_PARAMETERS)
    rate: float = SMALL_RATE * (parameters / SMALL_PARAMETERS) ** slope
    whole = min(SMALL_RATE, max(LARGE_RATE, rate))
    return min(SMALL_RATE, ADAPTER_FACTOR * whole) if adapter else whole
