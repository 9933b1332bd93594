"""The reference of the KL term: the policy as it was loaded, before any checkpoint, so that a continued run keeps it.

It is a copy of the trained tensors alone, which takes their place during a forward pass without gradient, so that the
copy of an adapter is as small as the adapter. It is kept only where there is a KL term.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from node.configuration import ObjectiveSection
from node.learner.objective.forward import WHOLE, MicroBatch, Network, PassSettings, completion_logps


class ReferencePolicy:
    """Holds the copy. Create it when the policy is loaded, before a checkpoint replaces the weights."""

    def __init__(self, trainable: Mapping[str, torch.nn.Parameter], section: ObjectiveSection) -> None:
        self._parameters = dict(trainable)
        self._copied = {name: p.detach().clone() for name, p in trainable.items()} if section.kl_weight > 0 else None

    @torch.no_grad()
    def logps(
        self, network: Network, micro_batch: MicroBatch, passes: PassSettings = WHOLE, *, temperature: float
    ) -> Tensor | None:
        """Returns log-probabilities (N,) under the reference; None where there is no reference."""
        if self._copied is None:
            return None
        with self._in_place(self._copied):
            return completion_logps(network, micro_batch, passes, temperature=temperature)[0]

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
