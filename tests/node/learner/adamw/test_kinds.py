"""The three kinds of ``learner.optimizer``: what they hold, that a checkpoint keeps them, and that they agree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from node.checkpoints import checkpoints
from node.configuration import DtypeName, LearnerSection, OptimizerName
from node.fit.optimizer_size import SLICE_ELEMENTS, SMALLEST_IN_8_BITS, optimizer_bytes
from node.learner.steps.adamw.moments import moments_of
from node.learner.steps.adamw.slices import Scratch
from node.learner.steps.optimizer import MasterAdamW
from protocol.errors import ConfigurationError

KINDS: tuple[OptimizerName, ...] = get_args(OptimizerName)
DTYPES: tuple[DtypeName, ...] = get_args(DtypeName)
SHAPES = {"matrix": (96, 130), "norm": (130,), "slices": (SLICE_ELEMENTS + 300,)}

Named = dict[str, torch.nn.Parameter]
every_kind = pytest.mark.parametrize("kind", KINDS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def parameters(dtype: DtypeName = "float32", **shapes: tuple[int, ...]) -> Named:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator).to(getattr(torch, dtype)))
        for name, shape in (shapes or SHAPES).items()
    }


def optimizer_of(named: Named, kind: OptimizerName) -> MasterAdamW:
    return MasterAdamW(named, LearnerSection(learning_rate=1e-2, optimizer=kind, weight_decay=0.1))


def step(named: Named, optimizer: MasterAdamW, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in named.values():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype) * 0.01
    assert optimizer.step().taken


def through_a_checkpoint(folder: Path, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    path, _ = checkpoints.write(folder, checkpoints.Snapshot(1, bytes(16), tensors, {}, {}), keep=1)
    return checkpoints.read(path).tensors


def copies(named: Named) -> Named:
    return {name: torch.nn.Parameter(p.detach().clone()) for name, p in named.items()}


@every_kind
@every_dtype
def test_run_continued_from_a_checkpoint_is_the_same_to_the_bit(
    kind: OptimizerName, dtype: DtypeName, tmp_path: Path
) -> None:
    first_named = parameters(dtype)
    first = optimizer_of(first_named, kind)
    for seed in range(2):
        step(first_named, first, seed)
    second_named = copies(first_named)
    second = optimizer_of(second_named, kind)
    second.restore(through_a_checkpoint(tmp_path, first.state()))
    for seed in (7, 8):
        step(first_named, first, seed)
        step(second_named, second, seed)
    assert all(torch.equal(first_named[name], second_named[name]) for name in SHAPES)
    assert first.state().keys() == second.state().keys()
    assert all(torch.equal(tensor, second.state()[name]) for name, tensor in first.state().items())


@every_dtype
def test_host_and_adamw_take_the_same_steps(dtype: DtypeName) -> None:
    ours, theirs = parameters(dtype), parameters(dtype)
    for named, optimizer in ((ours, optimizer_of(ours, "host")), (theirs, optimizer_of(theirs, "adamw"))):
        for seed in range(3):
            step(named, optimizer, seed)
    assert all(torch.equal(ours[name], theirs[name]) for name in SHAPES)


def test_a_tensor_of_several_slices_steps_as_torch_does() -> None:
    ours, theirs = parameters(slices=SHAPES["slices"]), parameters(slices=SHAPES["slices"])
    optimizer = optimizer_of(ours, "adamw")
    reference = torch.optim.AdamW(theirs.values(), lr=1e-2, weight_decay=0.1)
    for seed in range(3):
        step(ours, optimizer, seed)
        theirs["slices"].grad = torch.randn(SHAPES["slices"], generator=torch.Generator().manual_seed(seed)) * 0.01
        torch.nn.utils.clip_grad_norm_(theirs.values(), 1.0)
        reference.step()
    torch.testing.assert_close(ours["slices"], theirs["slices"])


def test_eight_bit_moments_reach_the_loss_of_float32_ones() -> None:
    """A least-squares problem with noisy gradients whose inputs differ in size a hundredfold."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(64, 64, generator=generator)
    sizes = torch.logspace(-2, 0, 64)
    losses = {}
    kinds: tuple[OptimizerName, ...] = ("adamw", "adamw8bit")
    for kind in kinds:
        named = {"w": torch.nn.Parameter(torch.zeros(64, 64))}
        optimizer = optimizer_of(named, kind)
        noise = torch.Generator().manual_seed(1)
        for _ in range(150):
            inputs = torch.randn(16, 64, generator=noise) * sizes
            (inputs @ (named["w"] - target)).square().mean().backward()
            optimizer.step()
        losses[kind] = float((sizes[:, None] * (named["w"].detach() - target)).square().mean())
    before = float((sizes[:, None] * target).square().mean())
    assert losses["adamw"] < before / 4
    assert losses["adamw8bit"] == pytest.approx(losses["adamw"], rel=0.05)


@pytest.mark.parametrize(("before", "after"), [("adamw", "adamw8bit"), ("adamw8bit", "adamw"), ("adamw8bit", "host")])
def test_another_kind_continues_with_the_moments_that_were_saved(before: OptimizerName, after: OptimizerName) -> None:
    same_named = parameters()
    same = optimizer_of(same_named, before)
    for seed in range(3):
        step(same_named, same, seed)
    other_named, fresh_named = copies(same_named), copies(same_named)
    other, fresh = optimizer_of(other_named, after), optimizer_of(fresh_named, after)
    other.restore(same.state())
    start = copies(same_named)
    for named, optimizer in ((same_named, same), (other_named, other), (fresh_named, fresh)):
        step(named, optimizer, 9)

    def distance(named: Named) -> float:
        left = (named["matrix"] - same_named["matrix"]).detach().norm()
        return float(left / (start["matrix"] - same_named["matrix"]).detach().norm())

    assert distance(other_named) < 0.03
    assert distance(fresh_named) > 0.3  # what forgetting the moments would do


@every_kind
@every_dtype
def test_memory_held_is_what_the_plan_counts(kind: OptimizerName, dtype: DtypeName) -> None:
    named = parameters(dtype, a=(512, 300), b=(64, 1024))
    optimizer = optimizer_of(named, kind)
    optimizer.prepare()
    held = sum(tensor.nbytes for tensor in optimizer.state().values())
    planned = optimizer_bytes(kind, sum(p.numel() for p in named.values()), dtype)
    copied_to_the_host = 4 * sum(p.numel() for p in named.values()) if (kind, dtype) == ("host", "float32") else 0
    assert held + copied_to_the_host == pytest.approx(planned.device + planned.host, rel=1e-3)  # here both are the CPU


def test_small_tensors_keep_float32_moments() -> None:
    named = parameters(small=(SMALLEST_IN_8_BITS - 1,), large=(SMALLEST_IN_8_BITS,))
    optimizer = optimizer_of(named, "adamw8bit")
    optimizer.prepare()
    assert optimizer.state()["exp_avg.small"].dtype == torch.float32
    assert optimizer.state()["exp_avg.large"].dtype == torch.uint8


def test_device_without_the_operator_for_8_bits_is_refused() -> None:
    with pytest.raises(ConfigurationError, match='the policy is on meta: use "adamw"'):
        moments_of("adamw8bit", {"w": torch.empty(SMALLEST_IN_8_BITS, device="meta")})


class LargestAllocation(TorchDispatchMode):
    """Notes the size of the largest storage that an operator returns and that was not there before."""

    def __init__(self, known: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known.values()}
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() not in self._known:
                self.bytes = max(self.bytes, each.untyped_storage().nbytes())
        return result


@every_kind
def test_a_step_never_copies_more_than_a_slice(kind: OptimizerName) -> None:
    named = parameters("bfloat16", w=(2 * SLICE_ELEMENTS,))
    optimizer = optimizer_of(named, kind)
    optimizer.prepare()
    named["w"].grad = torch.full_like(named["w"], 1e-3)
    known = {**named, "grad": named["w"].grad, **optimizer.state()}
    with LargestAllocation(known) as largest:
        assert optimizer.step().taken
    assert 0 < largest.bytes <= 4 * SLICE_ELEMENTS


def test_slices_that_cross_devices_arrive_as_they_were() -> None:
    """Both devices are the CPU here; the copies between them are those of a GPU's node."""
    scratch = Scratch(torch.device("cpu"), torch.device("meta"), 5, {torch.bfloat16, torch.float32})
    gradient = torch.tensor([1.5, -2.0, 0.25], dtype=torch.bfloat16)
    here = scratch.gradient(gradient, 2.0)
    assert here.dtype == torch.float32
    assert here.tolist() == [3.0, -4.0, 0.5]
    here.zero_()
    assert gradient.tolist() == [1.5, -2.0, 0.25]
    parameter = torch.zeros(3, dtype=torch.bfloat16)
    scratch.write(parameter, torch.tensor([0.5, 1.0, 3.0]))
    assert parameter.tolist() == [0.5, 1.0, 3.0]
    own = torch.tensor([1.0, 2.0])
    assert scratch.gradient(own, 1.0).data_ptr() != own.data_ptr()
