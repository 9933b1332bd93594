"""What the experiments on adapters train: the matrices of an adapter whole, or the head beside it."""

from __future__ import annotations

import pytest
import torch

from node.configuration import LearnerSection, PolicySection
from node.learner.steps.optimizer import MasterAdamW
from node.policy.first_factors import FIRST_FACTOR
from node.policy.policy import Policy
from scripts.experiments.harness.learner_ablations import ABLATIONS
from scripts.experiments.harness.trials import change_trained


def loaded(rank: int) -> Policy:
    return Policy.load(PolicySection(model="builtin:wren", device="cpu", dtype="float32", adapter_rank=rank))


def test_matrices_trained_whole_are_those_that_an_adapter_adapts() -> None:
    adapted = {name.partition(FIRST_FACTOR)[0] for name in loaded(2).trainable() if FIRST_FACTOR in name}
    whole = loaded(0)
    change_trained(whole, "matrices")
    assert {f"base_model.model.{name.removesuffix('.weight')}" for name in whole.trainable()} == adapted


def test_head_beside_an_adapter_is_trained_at_a_tenth_of_its_rate() -> None:
    policy = loaded(2)
    factors = policy.trainable().keys()
    change_trained(policy, "head")
    (head,) = policy.trainable().keys() - factors
    before = {name: p.detach().clone() for name, p in policy.trainable().items()}
    with ABLATIONS["head at a tenth of the rate"]():
        optimizer = MasterAdamW(policy.trainable(), LearnerSection(learning_rate=1e-3))
        for parameter in policy.trainable().values():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    moved = {name: float((p.detach() - before[name]).abs().max()) for name, p in policy.trainable().items()}
    assert policy.base.get_output_embeddings().weight is policy.trainable()[head]
    assert moved.pop(head) == pytest.approx(1e-4, rel=1e-2)
    assert list(moved.values()) == pytest.approx([1e-3] * len(moved), rel=1e-2)
