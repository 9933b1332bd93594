"""A policy and its optimizer in shards, as the learner uses them: one other device, in a process of its own."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from node.averaging import noloco
from node.averaging.noloco import copied
from node.checkpoints.checkpoints import NewestCheckpoint, read, write
from node.configuration import Config, LearnerSection, PolicySection
from node.learner.objective.forward import Network, PassSettings
from node.learner.objective.reference_policy import ReferencePolicy
from node.learner.sharding.device_processes import DeviceProcesses
from node.learner.sharding.sharded_adamw import ShardedAdamW
from node.learner.sharding.starting import LearnerDevices, ShardedPolicy, other_starts, put_in_shards
from node.learner.state.learner_state import LearnerState
from node.learner.state.persistence import restore, snapshot_of
from node.learner.steps.devices import ONE_DEVICE, LeadingDevice, StepTask
from node.learner.steps.optimizer import MasterAdamW
from node.learner.steps.step import BatchReport, BegunStep, OptimizerSteps
from node.learner.steps.undo import Undo
from node.policy.policy import Policy
from node.policy.weight_layout import layout_of
from node.policy.whole_tensors import bytes_of, elements_of
from node.state_sync.rebuild import bf16_copy
from tests.hang_guard import HANG_SECONDS
from tests.node.learner.objective.tiny_networks import groups

pytestmark = pytest.mark.processes

POLICY = PolicySection(model="builtin:wren", device="cpu", dtype="float32", adapter_rank=0, four_bit=False)
LEARNER = LearnerSection(learning_rate=1e-3, optimizer="adamw", devices=2)
CONFIG = Config(name="ann", policy=POLICY, learner=LEARNER)


class Whole:
    """The same policy in one process."""

    def __init__(self) -> None:
        self.policy = Policy.load(POLICY)
        self.optimizer = MasterAdamW(self.policy.trainable(), LEARNER)

    def learn(self, seed: int) -> BatchReport:
        return steps(self.policy, self.optimizer, ONE_DEVICE, step_task(seed))


class InShards:
    def __init__(self, folder: Path) -> None:
        self.lost: list[str] = []
        self.loss = threading.Event()
        began = Whole()
        began.learn(1)  # so that there is a state to hand out
        self.meeting = folder / "meeting"
        self.processes = DeviceProcesses(other_starts(self.meeting, CONFIG, began.policy, "cpu"), self._on_loss)
        self.policy: ShardedPolicy
        self.optimizer: ShardedAdamW
        self.devices: LearnerDevices
        self.policy, self.optimizer, self.devices = put_in_shards(
            self.meeting, CONFIG, began.policy, began.optimizer, self.processes, lambda: None
        )

    def _on_loss(self, because: str, ran_out: bool) -> None:
        self.lost.append(because)
        self.loss.set()

    def learn(self, seed: int) -> BatchReport:
        return steps(self.policy, self.optimizer, self.devices, step_task(seed))


def step_task(seed: int) -> StepTask:
    return StepTask(tuple(groups(seed, prompts=6)), PassSettings(60, recompute=True, chunk_tokens=8), 1.0, 8, 4)


def steps(
    policy: Policy, optimizer: MasterAdamW, devices: LeadingDevice, task: StepTask, begun: BegunStep | None = None
) -> BatchReport:
    with devices.taking(task):
        network = Network.of(policy.model, policy.tokens.vocabulary)
        reference = ReferencePolicy(policy.trainable(), CONFIG.objective)
        return OptimizerSteps(network, optimizer, CONFIG.objective, reference, devices).take(task, begun)


def assert_close(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], share: float) -> None:
    """``share``: of the learning rate, by which a weight may differ."""
    assert ours.keys() == theirs.keys()
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name].detach(), atol=share * 1e-3, rtol=0)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InShards]:
    made = InShards(tmp_path_factory.mktemp("shards"))
    yield made
    made.processes.end()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def whole() -> Whole:
    made = Whole()
    made.learn(1)
    return made


def test_what_was_whole_is_in_shards_to_the_bit_and_put_together_again_tensor_by_tensor(
    sharded: InShards, whole: Whole
) -> None:
    assert_close(sharded.policy.weights(), whole.policy.trainable(), 0)
    assert_close(sharded.optimizer.masters(), whole.optimizer.masters(), 0)
    assert_close(sharded.optimizer.state(), whole.optimizer.state(), 0)
    assert bytes_of(sharded.optimizer.state()) == bytes_of(whole.optimizer.state())
    assert elements_of(sharded.optimizer.masters()) == sharded.policy.parameters == whole.policy.parameters
    here = sum(rows.numel() for rows in MasterAdamW.masters(sharded.optimizer).values())
    assert here <= 0.6 * whole.policy.parameters
    layout = layout_of(sharded.policy.weights())
    assert layout == layout_of(sharded.policy.trainable()) == layout_of(whole.policy.trainable())
    for ours, theirs in zip(
        bf16_copy(layout, sharded.policy.weights()), bf16_copy(layout, whole.policy.trainable()), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_after_more_steps_weights_and_moments_are_those_of_one_process(sharded: InShards, whole: Whole) -> None:
    for seed in (2, 3):
        ours, theirs = sharded.learn(seed), whole.learn(seed)
        assert ours.step is not None and theirs.step is not None
        assert ours.step.gradient_norm == pytest.approx(theirs.step.gradient_norm, rel=1e-4)
        assert ours.objective.loss == pytest.approx(theirs.objective.loss, rel=1e-4, abs=1e-6)
    assert_close(sharded.policy.weights(), whole.policy.trainable(), 0.1)
    steps_taken = {float(t) for name, t in sharded.optimizer.state().items() if name.startswith("step.")}
    assert steps_taken == {3.0}


def test_how_far_a_step_moves_the_policy_is_measured_on_what_all_devices_computed(
    sharded: InShards, whole: Whole
) -> None:
    task = replace(step_task(5), passes=PassSettings(8192, recompute=True, chunk_tokens=8), measured=7)
    ours = steps(sharded.policy, sharded.optimizer, sharded.devices, task).objective
    theirs = steps(whole.policy, whole.optimizer, ONE_DEVICE, task).objective
    assert ours.moved_tokens == theirs.moved_tokens > 0
    assert ours.mean_moved() == pytest.approx(theirs.mean_moved(), rel=0.05)


def test_a_step_that_begins_before_all_groups_are_known_is_that_of_one_process_at_once(
    sharded: InShards, whole: Whole
) -> None:
    network, reference = Network.of(sharded.policy.model), ReferencePolicy(sharded.policy.trainable(), CONFIG.objective)
    task = step_task(4)
    first, second = (replace(task, groups=task.groups[part]) for part in (slice(0, 2), slice(2, 5)))

    def begin(begun: BegunStep, part: StepTask) -> None:
        with sharded.devices.beginning(part):
            OptimizerSteps(network, sharded.optimizer, CONFIG.objective, reference, sharded.devices).begin(begun, part)

    dropped, begun = BegunStep(), BegunStep()
    begin(dropped, second)
    sharded.devices.drop_begun()
    sharded.optimizer.drop_gradients()
    begin(begun, first)
    begin(begun, second)
    ours = steps(sharded.policy, sharded.optimizer, sharded.devices, replace(task, groups=task.groups[5:]), begun)
    theirs = whole.learn(4)
    assert ours.step is not None and theirs.step is not None
    assert ours.step.gradient_norm == pytest.approx(theirs.step.gradient_norm, rel=1e-4)
    assert ours.objective.loss == pytest.approx(theirs.objective.loss, rel=1e-4, abs=1e-6)
    assert ours.objective.tokens == theirs.objective.tokens
    assert_close(sharded.policy.weights(), whole.policy.trainable(), 0.1)


def test_weights_that_are_put_are_those_that_the_next_pass_uses_on_both_devices(
    sharded: InShards, whole: Whole
) -> None:
    moved = {name: tensor.detach() * 0.9 for name, tensor in whole.optimizer.masters().items()}
    for optimizer in (sharded.optimizer, whole.optimizer):
        optimizer.put(moved)
    assert_close(sharded.policy.weights(), moved, 0)
    assert sharded.learn(4).objective.entropy == pytest.approx(whole.learn(4).objective.entropy, rel=1e-5)


def test_an_outer_step_of_averaging_moves_both_devices_as_it_moves_one_process(sharded: InShards, whole: Whole) -> None:
    partner = {name: tensor.detach() * 1.1 for name, tensor in whole.optimizer.masters().items()}
    for each in (sharded, whole):
        offered = copied(each.optimizer.masters())
        state = noloco.outer_step(noloco.begin(offered), [offered, partner], noloco.NolocoConstants())
        each.learn(8)  # meanwhile
        each.optimizer.put(noloco.overlapped(each.optimizer.masters(), offered, state.outer))
    assert_close(sharded.policy.weights(), whole.policy.trainable(), 0.1)


def test_a_copy_brings_weights_and_moments_back_to_the_bit(sharded: InShards) -> None:
    before = {**sharded.optimizer.state(), **sharded.policy.weights()}
    undo = Undo(sharded.optimizer)
    sharded.learn(5)
    assert any(not torch.equal(before[name], tensor) for name, tensor in sharded.policy.weights().items())
    undo.restore()
    assert_close({**sharded.optimizer.state(), **sharded.policy.weights()}, before, 0)


def test_a_checkpoint_of_shards_is_continued_by_one_process_and_has_the_same_tensors(
    sharded: InShards, tmp_path: Path
) -> None:
    snapshot = snapshot_of(CONFIG, sharded.policy, sharded.optimizer, LearnerState(round=7), dict)
    path, size_bytes = write(tmp_path, snapshot, keep=1)
    assert size_bytes >= bytes_of(snapshot.tensors)
    one = Whole()
    state, _ = restore(NewestCheckpoint(read(path), path), tmp_path, one.policy, one.optimizer)
    assert state.round == 7
    assert_close(one.policy.trainable(), sharded.policy.weights(), 0)
    assert_close(one.optimizer.state(), sharded.optimizer.state(), 0)


def test_a_device_whose_process_is_killed_is_reported_at_once_and_takes_no_more_orders(sharded: InShards) -> None:
    os.kill(sharded.processes.pids[0], signal.SIGKILL)  # the last test of this file
    assert sharded.loss.wait(HANG_SECONDS)
    assert "device 1 ended with signal 9" in sharded.lost[0] and "checkpoint" in sharded.lost[0]
