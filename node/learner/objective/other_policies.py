"""Other policies of the same network that the objective compares with: a reference, and PPO-EWMA's proximal policy.

Each is a copy of the trained tensors alone, which takes their place during a forward pass without gradient, so that the
copy of an adapter is as small as the adapter. A copy is kept only where the objective needs it.

The reference is the policy as it was loaded, before any checkpoint: a continued run keeps the same reference.

PPO-EWMA revised (arXiv 2605.12070): m = θ and z = 1 before the first step, and after every step

    m ← β m + θ,  z ← β z + 1,  θ_prox = m / z,  β = W / (W + 2)

Where less than .9 of the last step's spans had a weight, that is a ratio π_prox/μ within [1/C, C], both restart with
θ. The paper counts tokens. The average is not in checkpoints: a continued run restarts it too.
With foreign groups of distant policies most spans have no weight, and θ_prox is θ at every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor

from node.configuration import ObjectiveSection
from node.learner.objective.forward import WHOLE, MicroBatch, Network, PassSettings, completion_logps
from node.learner.objective.weights import CORRECTIONS

MIN_ACTIVE_SHARE: Final = 0.9


class OtherPolicies:
    """Holds these copies. Create it when the policy is loaded, before a checkpoint replaces the weights."""

    def __init__(self, trainable: Mapping[str, torch.nn.Parameter], section: ObjectiveSection) -> None:
        self._parameters = dict(trainable)
        copied = {name: p.detach().clone() for name, p in trainable.items()} if section.kl_weight > 0 else None
        self._reference = copied
        self._averaging = CORRECTIONS[section.correction].averages_proximal
        window = section.research.proximal_window
        self._decay = window / (window + 2)  # β
        self._sum: dict[str, Tensor] = {}  # m, float32; empty until the first batch, when θ_prox = θ
        self._norm = 1.0  # z

    @torch.no_grad()
    def reference_logps(
        self, network: Network, micro_batch: MicroBatch, passes: PassSettings = WHOLE, *, temperature: float
    ) -> Tensor | None:
        """Returns log-probabilities (N,) under the reference; None where there is no reference."""
        if self._reference is None:
            return None
        with self._in_place(self._reference):
            return completion_logps(network, micro_batch, passes, temperature=temperature)[0]

    @torch.no_grad()
    def proximal_logps(
        self, network: Network, micro_batch: MicroBatch, passes: PassSettings = WHOLE, *, temperature: float
    ) -> Tensor | None:
        """Returns log-probabilities (N,) under the average; None where the proximal policy is the present one. Called
        before a step is taken, the first time it begins the average with the present weights."""
        if self._averaging and not self._sum:
            self._begin()
        if self._norm == 1.0:  # nothing but the present weights is in it
            return None
        averages = {name: (total / self._norm).to(self._parameters[name].dtype) for name, total in self._sum.items()}
        with self._in_place(averages):
            return completion_logps(network, micro_batch, passes, temperature=temperature)[0]

    @torch.no_grad()
    def after_step(self, active_share: float | None) -> None:
        """Adds the new weights to the average. ``active_share`` of the spans had a weight; None without any span."""
        if not self._averaging:
            return
        if not self._sum or (active_share is not None and active_share < MIN_ACTIVE_SHARE):
            self._begin()
            return
        for name, parameter in self._parameters.items():
            self._sum[name].mul_(self._decay).add_(parameter.detach())
        self._norm = self._decay * self._norm + 1.0

    def average(self) -> tuple[dict[str, Tensor], float]:
        """Returns m and z of the averaged proximal policy, as live tensors; nothing before its first batch."""
        return self._sum, self._norm

    @torch.no_grad()
    def restore_average(self, total: Mapping[str, Tensor], norm: float) -> None:
        """Puts back what ``average`` returned, from copies of it, which stay as they are."""
        self._sum = {
            name: self._sum[name].copy_(tensor)
            if name in self._sum
            else tensor.to(self._parameters[name].device, copy=True)
            for name, tensor in total.items()
        }
        self._norm = norm

    def _begin(self) -> None:
        self._sum = {name: p.detach().float().clone() for name, p in self._parameters.items()}
        self._norm = 1.0

    @contextmanager
    def _in_place(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Within the context the network computes with ``tensors``; nothing is copied."""
        own = {name: parameter.data for name, parameter in self._parameters.items()}
        try:
            for name, parameter in self._parameters.items():
                parameter.data = tensors[name]
            yield
        finally:
            for name, parameter in self._parameters.items():
                parameter.data = own[name]
