"""Copies of weights and moments that are put back, and renewed in the memory that they have."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from node.configuration import DtypeName, LearnerSection, OptimizerName
from node.fit.footprint import HARM_COPIES, footprint_of
from node.learner.steps.optimizer import MasterAdamW
from node.learner.steps.undo import Undo, copy_within
from tests.node.fit.shapes import PLAIN, ROUND, sizes

WEIGHTS = 8


class Trained:
    """One parameter and its optimizer."""

    def __init__(self, dtype: torch.dtype, count: int = WEIGHTS, optimizer: OptimizerName = "adamw") -> None:
        self.parameter = torch.nn.Parameter(torch.ones(count, dtype=dtype))
        self.optimizer = MasterAdamW({"w": self.parameter}, LearnerSection(learning_rate=1e-2, optimizer=optimizer))

    def step(self) -> None:
        self.parameter.grad = torch.full_like(self.parameter, 0.5)
        assert self.optimizer.step().taken

    def everything(self) -> dict[str, Tensor]:
        state = {**self.optimizer.state(), **self.optimizer.masters(), "weights": self.parameter.detach()}
        return {name: tensor.clone() for name, tensor in state.items()}


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_copy_stays_as_it_is_however_often_it_is_put_back(dtype: torch.dtype) -> None:
    trained = Trained(dtype)
    trained.step()
    before, undo = trained.everything(), Undo(trained.optimizer)
    for _ in range(2):
        trained.step()
        assert not same(trained.everything(), before)
        undo.restore()
        assert same(trained.everything(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_copy_is_renewed_in_its_own_memory(dtype: torch.dtype) -> None:
    trained = Trained(dtype)
    trained.step()
    first = copy_within(WEIGHTS, trained.optimizer)
    assert first is not None
    places = {name: tensor.data_ptr() for name, tensor in first._state.items()}
    trained.step()
    later = trained.everything()
    assert copy_within(WEIGHTS, trained.optimizer, first) is first
    assert {name: tensor.data_ptr() for name, tensor in first._state.items()} == places
    trained.step()
    first.restore()
    assert same(trained.everything(), later)


def test_of_more_weights_than_the_bound_there_is_no_copy() -> None:
    trained = Trained(torch.float32)
    assert copy_within(WEIGHTS - 1, trained.optimizer) is None
    assert copy_within(WEIGHTS, trained.optimizer) is not None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", ["adamw", "adamw8bit", "host"])
def test_a_copy_takes_what_is_planned_for_it(dtype: DtypeName, optimizer: OptimizerName) -> None:
    count = 1 << 14
    trained = Trained(getattr(torch, dtype), count, optimizer)
    trained.step()
    copy = Undo(trained.optimizer)
    taken = sum(tensor.nbytes for tensor in copy._state.values())
    settings = replace(PLAIN, dtype=dtype, optimizer=optimizer)
    shape = replace(sizes("Pythia-160M"), layers=0, norm_parameters=0, head_parameters=0, embedding_parameters=count)
    parts = footprint_of(shape, settings, ROUND).phase("learning").parts
    [planned] = [part.bytes for part in parts if part.name == "copies against harm"]
    assert planned == pytest.approx(HARM_COPIES * taken, rel=0.01)
