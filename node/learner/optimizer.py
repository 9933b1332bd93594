"""AdamW on float32 weights, whatever the policy computes in.

A policy in bfloat16 would lose most small steps: at learning rate 1e-6 an update is below half a unit in the last place
of nearly every weight. So AdamW keeps a float32 master copy of each such parameter and rounds after every step. A step
whose gradient is not finite changes nothing, neither weights nor moments, and is counted. A step whose gradient is zero
throughout, as of a batch that was filtered out, changes nothing either: otherwise momentum alone would move weights.

A step that runs out of memory has changed nothing but gradients: what a step allocates is allocated before the first
weight, moment or counter changes, and the copies in place that follow are always completed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from node.configuration import LearnerSection
from node.learner.gradients import GradientAccumulator
from node.learner.memory.errors import completed
from protocol.errors import StorageError

# Two points joined by a power law: what suits the built-in models, and what was published for whole models of 0.5 to 3
# billion parameters (F-TIS, arXiv 2605.22537).
SMALL_PARAMETERS: Final = 5e5
SMALL_RATE: Final = 3e-4
LARGE_PARAMETERS: Final = 6e8
LARGE_RATE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class StepReport:
    gradient_norm: float  # before clipping; may be infinite or NaN when the step was skipped
    taken: bool  # False where the gradient was not finite, or zero throughout


class MasterAdamW:
    """AdamW over named parameters, with clipping by the gradient's global norm."""

    def __init__(self, trainable: Mapping[str, torch.nn.Parameter], section: LearnerSection) -> None:
        self._parameters = dict(trainable)
        self.accumulated = GradientAccumulator(self._parameters)
        self._masters = {
            name: p if p.dtype == torch.float32 else torch.nn.Parameter(p.detach().float().clone())
            for name, p in self._parameters.items()
        }
        self._gradient_clip = section.gradient_clip
        rate = section.learning_rate
        if rate == "auto":
            rate = learning_rate_for(sum(p.numel() for p in self._parameters.values()))
        self._fused = all(p.device.type in ("cpu", "cuda") for p in self._parameters.values())
        self._adamw = torch.optim.AdamW(
            self._masters.values(), lr=rate, weight_decay=section.weight_decay, fused=self._fused
        )
        self._rate = rate
        self.steps_skipped = 0

    @torch.no_grad()
    def step(self, *, rate_scale: float = 1.0) -> StepReport:
        """Takes one step on the gradients accumulated, those in the parameters' ``grad`` included, and drops them.

        The learning rate is ``rate_scale`` times the configured one.
        """
        for name, gradient in self.accumulated.gradients().items():
            self._masters[name].grad = gradient
        gradients = [m.grad for m in self._masters.values() if m.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0
        taken = math.isfinite(norm) and norm > 0
        if taken:
            self.prepare()
            for each in self._adamw.param_groups:
                each["lr"] = self._rate * rate_scale
            masters = list(self._masters.values())
            torch.nn.utils.clip_grads_with_norm_(masters, self._gradient_clip, torch.tensor(norm))
            self._step_or_nothing()
            completed(self._round_to_parameters)
        elif norm != 0:
            self.steps_skipped += 1
        self.drop_gradients()
        return StepReport(norm, taken)

    @torch.no_grad()
    def prepare(self) -> None:
        """Allocates the moments now rather than in the first step: all of them, or none where memory runs out."""
        missing = [master for master in self._masters.values() if not self._adamw.state.get(master)]
        self._adamw.state.update(
            {
                master: {
                    "step": torch.zeros((), dtype=torch.float32, device=master.device if self._fused else "cpu"),
                    "exp_avg": torch.zeros_like(master, memory_format=torch.preserve_format),
                    "exp_avg_sq": torch.zeros_like(master, memory_format=torch.preserve_format),
                }
                for master in missing
            }
        )

    def drop_gradients(self) -> None:
        """Forgets what has been accumulated for a step."""
        self._adamw.zero_grad(set_to_none=True)
        self.accumulated.drop()

    def _step_or_nothing(self) -> None:
        """AdamW counts the step in one operation and takes it in another: the count is put back if that one fails."""
        counts = [state["step"] for state in self._adamw.state.values()]
        before = torch.stack(counts)
        try:
            self._adamw.step()
        except Exception:
            for count, value in zip(counts, before.unbind(), strict=True):
                count.copy_(value)
            raise

    def masters(self) -> dict[str, Tensor]:
        """Returns the float32 weights that steps are taken on, by name, as live tensors."""
        return {name: master.detach() for name, master in self._masters.items()}

    @torch.no_grad()
    def put(self, weights: Mapping[str, Tensor]) -> None:
        """Replaces the weights by float32 ones, one for every master and of its shape. The moments stay."""

        def write() -> None:
            for name, master in self._masters.items():
                master.copy_(weights[name])
            self._round_to_parameters()

        completed(write)

    def _round_to_parameters(self) -> None:
        for name, parameter in self._parameters.items():
            if self._masters[name] is not parameter:
                parameter.copy_(self._masters[name])

    def state(self) -> dict[str, Tensor]:
        """Returns everything a continued run needs, as live tensors by name: moments, and master weights where kept."""
        tensors: dict[str, Tensor] = {}
        for name, master in self._masters.items():
            if master is not self._parameters[name]:
                tensors[f"master.{name}"] = master.detach()
            for key, value in self._adamw.state.get(master, {}).items():
                tensors[f"{key}.{name}"] = value
        return tensors

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restores what ``state`` returned. Raises ``StorageError`` where a tensor is missing or of another shape."""
        for name, master in self._masters.items():
            if master is not self._parameters[name]:
                master.copy_(_of_shape(tensors, f"master.{name}", master.shape))
            if f"step.{name}" in tensors:  # absent where no step was taken before
                moments = {key: _of_shape(tensors, f"{key}.{name}", master.shape) for key in ("exp_avg", "exp_avg_sq")}
                moments["step"] = _of_shape(tensors, f"step.{name}", torch.Size([]))
                self._adamw.state[master] = {k: v.clone().to(master.device) for k, v in moments.items()}
        self._round_to_parameters()


def learning_rate_for(parameters: int) -> float:
    """Returns the learning rate for so many trained parameters: between the two points, and constant outside."""
    slope = math.log(LARGE_RATE / SMALL_RATE) / math.log(LARGE_PARAMETERS / SMALL_PARAMETERS)
    rate: float = SMALL_RATE * (parameters / SMALL_PARAMETERS) ** slope
    return min(SMALL_RATE, max(LARGE_RATE, rate))


def _of_shape(tensors: Mapping[str, Tensor], name: str, shape: torch.Size) -> Tensor:
    tensor = tensors.get(name)
    if tensor is None or tensor.shape != shape:
        found = "missing" if tensor is None else f"of shape {tuple(tensor.shape)}"
        raise StorageError(f"the optimizer's {name} is {found}, expected shape {tuple(shape)}")
    return tensor
