"""A checkpoint continues under another plan: another precision, another optimizer, and as an adapter alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from node.checkpoints.checkpoints import NewestCheckpoint, Snapshot, read, write
from node.configuration import Config, DtypeName, LearnerSection, OptimizerName, PolicySection
from node.learner.state.continuing import continued
from node.learner.state.learner_state import LearnerState
from node.learner.state.persistence import restore, snapshot_of
from node.learner.steps.optimizer import MasterAdamW
from node.policy.policy import Policy


def node(
    dtype: DtypeName = "float32", optimizer: OptimizerName = "adamw", *, rank: int = 0, four_bit: bool = False
) -> tuple[Policy, MasterAdamW]:
    section = PolicySection(model="builtin:wren", device="cpu", dtype=dtype, adapter_rank=rank, four_bit=four_bit)
    policy = Policy.load(section)
    return policy, MasterAdamW(policy.trainable(), LearnerSection(learning_rate=1e-3, optimizer=optimizer))


def step(policy: Policy, optimizer: MasterAdamW, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in policy.trainable().values():
        parameter.grad = (torch.randn(parameter.shape, generator=generator) * 1e-3).to(parameter.dtype)
    assert optimizer.step().taken


def saved(folder: Path, policy: Policy, optimizer: MasterAdamW) -> NewestCheckpoint:
    path, _ = write(folder, snapshot_of(Config(), policy, optimizer, LearnerState(round=3), dict), keep=1)
    return NewestCheckpoint(read(path), path)


@pytest.mark.parametrize(("before", "after"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_another_precision_continues_from_the_same_float32_weights_and_moments(
    before: DtypeName, after: DtypeName, tmp_path: Path
) -> None:
    policy, optimizer = node(before)
    step(policy, optimizer, 0)
    other_policy, other = node(after)
    state, _ = restore(saved(tmp_path, policy, optimizer), tmp_path, other_policy, other)
    assert state.round == 3
    for name, master in optimizer.masters().items():
        assert torch.equal(other.masters()[name], master)
        assert torch.equal(other_policy.trainable()[name].detach(), master.to(getattr(torch, after)))
        assert torch.equal(other.state()[f"exp_avg.{name}"], optimizer.state()[f"exp_avg.{name}"])


def test_another_optimizer_continues_from_the_same_weights(tmp_path: Path) -> None:
    policy, optimizer = node("bfloat16", "adamw8bit")
    step(policy, optimizer, 0)
    other_policy, other = node("bfloat16", "host")
    restore(saved(tmp_path, policy, optimizer), tmp_path, other_policy, other)
    assert all(torch.equal(other.masters()[name], master) for name, master in optimizer.masters().items())
    assert not any(name.startswith("exp_avg_scales") for name in other.state())


def test_checkpoint_of_a_base_in_4_bits_holds_the_adapter_alone_and_restores_it(tmp_path: Path) -> None:
    policy, optimizer = node(rank=4, four_bit=True)
    step(policy, optimizer, 0)
    checkpoint = saved(tmp_path, policy, optimizer)
    assert checkpoint.snapshot is not None
    weights = [name for name in checkpoint.snapshot.tensors if name.startswith("weights.")]
    assert weights
    assert all("lora_" in name for name in weights)
    again, other = node(rank=4, four_bit=True)
    restore(checkpoint, tmp_path, again, other)
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        assert torch.equal(policy.model(input_ids=ids).logits, again.model(input_ids=ids).logits)


def with_state(**changes: object) -> Callable[[Snapshot], Snapshot]:
    return lambda snapshot: replace(snapshot, state={**snapshot.state, **changes})


def with_nan(snapshot: Snapshot) -> Snapshot:
    name = next(name for name in snapshot.tensors if name.startswith("weights."))
    spoilt = torch.full_like(snapshot.tensors[name], float("nan"))
    return replace(snapshot, tensors={**snapshot.tensors, name: spoilt})


def without_moments(snapshot: Snapshot) -> Snapshot:
    name = next(name for name in snapshot.tensors if name.startswith("optimizer.exp_avg."))
    return replace(snapshot, tensors={key: value for key, value in snapshot.tensors.items() if key != name})


@pytest.mark.parametrize(
    "spoil",
    [with_nan, without_moments, with_state(policy_version=2**63 - 1), with_state(success={"classes": {"add": "much"}}),
     with_state(pool=None, groups_shared=-1)],
)  # fmt: skip
def test_checkpoint_that_no_run_can_continue_from_is_set_aside_and_the_one_before_is_used(
    spoil: Callable[[Snapshot], Snapshot], tmp_path: Path
) -> None:
    policy, optimizer = node()
    step(policy, optimizer, 0)
    before = snapshot_of(Config(), policy, optimizer, LearnerState(round=3, policy_version=3), dict)
    write(tmp_path, before, keep=2)
    write(tmp_path, spoil(replace(before, round=4)), keep=2)
    other_policy, other = node()
    found = continued(tmp_path, other_policy, other)
    assert found.state.round == found.state.policy_version == 3
    assert found.checkpoint is not None and found.checkpoint.name == "round-000003"
    assert [each.name for each in found.damaged] == ["round-000004"] and not found.has_lost_all
    assert all(torch.equal(other.masters()[name], master) for name, master in optimizer.masters().items())
    (aside,) = tmp_path.glob("set-aside-*")
    assert found.damaged[0].aside == str(aside)
    assert (aside / "tensors.safetensors").exists()


def test_only_checkpoint_is_of_no_use_and_the_run_begins_afresh(tmp_path: Path) -> None:
    policy, optimizer = node()
    step(policy, optimizer, 0)
    write(tmp_path, with_nan(snapshot_of(Config(), policy, optimizer, LearnerState(round=3), dict)), keep=1)
    fresh_policy, fresh = node()
    original, _ = node()
    found = continued(tmp_path, fresh_policy, fresh)
    assert (found.state.round, found.pool_position, found.checkpoint) == (0, None, None)
    assert found.has_lost_all
    assert all(torch.equal(p, original.trainable()[name]) for name, p in fresh_policy.trainable().items())
