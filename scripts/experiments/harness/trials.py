"""What an experiment tries that no node does: named in a plan's ``trial``, applied to the nodes of one run.

``first_factors``: "own" draws an adapter's A from each node's name, not from the family; "frozen" never trains it.
``trained``: "matrices" trains, of whole weights, those alone that an adapter adapts; "head" trains, beside an adapter,
the output matrix, which is the embedding where the two are tied.
``compressed``: averaging in few bytes with these constants instead of the node's.
``update_sum``: all nodes add each other's sparse updates every so many rounds, with these settings of ``UpdateSum``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

from torch import nn

from node.averaging import rules
from node.learner.steps.optimizer import MasterAdamW
from node.policy.first_factors import draw_first_factors, is_first_factor
from node.policy.policy import Policy
from scripts.experiments.language_model.update_sum import UpdateSum


def change_first_factors(policy: Policy, name: str, how: str) -> None:
    """Changes an adapter before anything is learnt; ``name`` is the node's."""
    trained = policy.trainable()
    if how == "own":
        draw_first_factors(trained, hashlib.sha256(name.encode()).digest())
    elif how == "frozen":
        for factor, parameter in trained.items():
            if is_first_factor(factor):
                parameter.requires_grad_(False)
    else:
        raise ValueError(f"no trial of first factors is called {how!r}")


def change_trained(policy: Policy, which: str) -> None:
    """Changes which parameters are trained, before an optimizer has them."""
    head = policy.base.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers
    if which == "matrices":
        linear = [each for each in policy.base.modules() if isinstance(each, nn.Linear) and each is not head]
        adapted = {parameter for each in linear for parameter in each.parameters()}
        for parameter in policy.model.parameters():
            parameter.requires_grad_(parameter in adapted)
    elif which == "head":
        head.weight.requires_grad_(True)
    else:
        raise ValueError(f"no trial of what is trained is called {which!r}")


@contextmanager
def other_compressed_constants(settings: Mapping[str, Any]) -> Iterator[None]:
    before = rules.COMPRESSED
    rules.COMPRESSED = replace(before, **settings)  # type: ignore[misc]
    try:
        yield
    finally:
        rules.COMPRESSED = before  # type: ignore[misc]


class SharedUpdates:
    """``UpdateSum`` among the nodes of one run, every ``every_rounds`` rounds of all."""

    def __init__(self, optimizers: Sequence[MasterAdamW], seed: int, every_rounds: int, **settings: Any) -> None:
        self._optimizers, self._every_rounds = optimizers, every_rounds
        self._rule = UpdateSum(optimizers[0].masters(), len(optimizers), Random(f"updates {seed}"), **settings)
        self.steps = 0

    @property
    def received_bytes(self) -> float:
        """By one node."""
        return self._rule.received_bytes

    def after_round(self, round_number: int) -> None:
        if round_number % self._every_rounds == 0:
            offered: list[Mapping[str, Any]] = [optimizer.masters() for optimizer in self._optimizers]
            for optimizer, weights in zip(self._optimizers, self._rule.outer(offered), strict=True):
                optimizer.put(weights)
            self.steps += 1
