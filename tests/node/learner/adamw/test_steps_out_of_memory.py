"""Steps that run out of memory anywhere: with every kind of optimizer they are not taken, or taken whole."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from bitsandbytes import functional
from torch import Tensor

from node.configuration import DtypeName, LearnerSection, OptimizerName
from node.learner.memory import errors
from node.learner.steps.adamw import slices
from node.learner.steps.optimizer import MasterAdamW
from protocol.errors import HalfWrittenError
from tests.node.learner.memory.failing_operation import FailsAt

KINDS: tuple[OptimizerName, ...] = get_args(OptimizerName)
SHAPES = {"matrix": (70, 60), "norm": (13,)}
SLICE = 4096  # two for the matrix

Tensors = dict[str, Tensor]


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_ELEMENTS", SLICE)
    monkeypatch.setattr(errors, "give_back", lambda: None)  # it takes a tenth of a second


class Steps:
    """An optimizer that has taken a step, and has the gradients of a second one, which is clipped."""

    def __init__(self, kind: OptimizerName, dtype: DtypeName = "bfloat16", *, steps_before: int = 1) -> None:
        torch.manual_seed(0)
        self.named = {
            name: torch.nn.Parameter(torch.randn(shape).to(getattr(torch, dtype))) for name, shape in SHAPES.items()
        }
        self.optimizer = MasterAdamW(
            self.named, LearnerSection(learning_rate=1e-2, optimizer=kind, weight_decay=0.1, gradient_clip=1.0)
        )
        for seed in range(steps_before):
            self.set_gradients(seed)
            assert self.optimizer.step().taken
        self.set_gradients(7)

    def set_gradients(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.named.values():
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)

    def repeat(self) -> None:
        """Does what the learner does after a phase that ran out."""
        self.optimizer.drop_gradients()
        self.set_gradients(7)
        assert self.optimizer.step().taken

    def everything(self) -> Tensors:
        moments = {name: tensor for name, tensor in self.optimizer.state().items() if name.startswith(("exp", "step"))}
        if not any(float(moments[name]) for name in moments if name.startswith("step")):
            moments = {}  # moments before the first step are as good as none
        rounded = {f"rounded.{n}": p.detach() for n, p in self.named.items()}
        tensors = {**moments, **self.optimizer.masters(), **rounded}
        return {name: tensor.clone() for name, tensor in tensors.items()}


def same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "steps_before"), [("float32", 1), ("bfloat16", 0), ("bfloat16", 1)])
def test_step_that_runs_out_of_memory_anywhere_is_not_taken_or_is_taken_whole(
    kind: OptimizerName, dtype: DtypeName, steps_before: int
) -> None:
    undisturbed = Steps(kind, dtype, steps_before=steps_before)
    before, counting = undisturbed.everything(), FailsAt(in_place=True)
    with counting:
        assert undisturbed.optimizer.step().taken
    after, raised, completed = undisturbed.everything(), 0, 0
    for number in range(counting.seen):
        steps, failing = Steps(kind, dtype, steps_before=steps_before), FailsAt(number, in_place=True)
        try:
            with failing:
                assert steps.optimizer.step().taken
            completed += 1
        except torch.OutOfMemoryError:
            assert same(steps.everything(), before), number
            raised += 1
            steps.repeat()
        assert failing.raised == 1
        assert same(steps.everything(), after), number
    assert raised > 5
    assert completed > 20


def test_operator_for_8_bits_that_runs_out_after_its_first_writes_is_run_again_on_what_was_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    undisturbed, steps = Steps("adamw8bit"), Steps("adamw8bit")
    assert undisturbed.optimizer.step().taken
    real, calls = functional.optimizer_update_8bit_blockwise, list[int]()

    def runs_out_at_its_end(*arguments: Any) -> None:
        real(*arguments)
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(functional, "optimizer_update_8bit_blockwise", runs_out_at_its_end)
    assert steps.optimizer.step().taken
    assert len(calls) == 3  # of two slices
    assert same(steps.everything(), undisturbed.everything())


@pytest.mark.parametrize("kind", KINDS)
def test_operation_that_runs_out_twice_in_the_middle_of_a_step_ends_the_learner(kind: OptimizerName) -> None:
    steps = Steps(kind)
    with pytest.raises(HalfWrittenError, match="last checkpoint"), FailsAt(0, 1, kind="aten._fused_adamw_.default"):
        steps.optimizer.step()
