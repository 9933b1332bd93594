"""Averaging within the round: a real learner of a built-in model, real checkpoints, and a simulated swarm process."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor

from node.averaging import noloco
from node.averaging.rules import AveragingRule, CompressedRule, DenseRule, averaging_snapshot, bf16_bits
from node.averaging.trial import TRIAL_ROUNDS
from node.averaging.weight_averager import WeightAverager
from node.checkpoints.checkpoints import BackgroundCheckpoints, read_newest
from node.configuration import AveragingSection, CheckpointSection, Config, LearnerSection, PolicySection, TasksSection
from node.engines.encoded_weights import EncodedWeights
from node.engines.torch import TorchEngine
from node.events import Averaged, AveragingTakenBack, Event, Fault, OutOfMemory, RoundDone
from node.learner.assembly.wiring import Extras, learner_of
from node.learner.foreign.intake import RolloutIntake
from node.learner.generation.own_rollouts import RewardScorer
from node.learner.state.learner_state import LearnerState
from node.learner.state.persistence import Persistence, restore
from node.learner.steps.optimizer import MasterAdamW
from node.policy.policy import Policy
from node.tasks.registry import load_tasks
from node.tasks.scorer import Scores
from node.tasks.task import Task
from protocol.blob_id import blob_id
from protocol.errors import StorageError
from protocol.messages import Heartbeat, PromptRef
from protocol.streams.averaging_messages import Offer
from protocol.weights.dense_weights import encode_dense
from protocol.weights.tensor_layout import TensorLayout
from swarm import api

SECTION = LearnerSection(own_groups=1, completions=2, foreign_groups=0, share_groups=0, learning_rate=1e-3)
TASKS = load_tasks(TasksSection(names=("basic_arithmetic",)))
WAIT_SECONDS = 60.0  # a hang guard


def digest(tensors: Mapping[str, Tensor]) -> str:
    hashed = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        hashed.update(name.encode() + tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


class HereScorer(RewardScorer):
    def __init__(self, known: Mapping[str, Task]) -> None:
        self._tasks = known

    def score(self, items: Sequence[tuple[PromptRef, Sequence[str]]]) -> list[Scores]:
        rewards = [self._tasks[ref.task].rewards(self._tasks[ref.task].prompt(ref), texts) for ref, texts in items]
        return [Scores(tuple(each), (None,) * len(each)) for each in rewards]


class Family:
    """A partner whose weights differ a little from the built-in model's; ``may_answer`` holds its answer back."""

    def __init__(self, folder: Path, family: bytes, weights: Mapping[str, Tensor]) -> None:
        self._folder, self._family = folder, family
        self.layout = TensorLayout.of({name: tensor.shape for name, tensor in weights.items()})
        generator = torch.Generator().manual_seed(5)
        self.theirs = {
            name: (tensor.detach() + 0.01 * torch.randn(tensor.shape, generator=generator)).to(torch.bfloat16)
            for name, tensor in weights.items()
        }
        self.seeking, self.may_answer = threading.Event(), threading.Event()
        self.may_answer.set()

    def peers(self) -> list[api.PeerStatus]:
        beat = Heartbeat("bob", "", "", self._family, bytes(16), 1, 1, "", 1.0, 0, 0, ())
        return [api.PeerStatus("bob", True, (), None, beat, 1.0, 0, 0, 0, 1.0, None)]

    def average(self, ours, *, deadline_seconds):
        self.seeking.set()
        assert self.may_answer.wait(WAIT_SECONDS)
        content = encode_dense(self.layout, bf16_bits(self.theirs, self.layout))
        if ours.encoding == CompressedRule.encoding:
            content = b"".join(ours.content)  # as of a partner that learnt the same
        path = self._folder / "theirs"
        path.write_bytes(content)
        offer = Offer(ours.family, ours.layout.digest, ours.encoding, ours.step, blob_id(content), len(content))
        return api.AverageReply("bob", offer, str(path), 1.0, "1 × committed", 0.5)

    def judge(self, peer: str, blob: bytes, judgement: api.Judgement, detail: str = "") -> None:
        return

    def close(self) -> None:
        self.may_answer.set()


class Steady(Random):
    """Draws the middle, so that a test knows the round."""

    def randint(self, a: int, b: int) -> int:
        return (a + b) // 2


class WatchedEngine(TorchEngine):
    """Remembers every version that it got, with a digest of its weights."""

    def load_weights(self, version: int, weights: Mapping[str, Tensor] | EncodedWeights) -> None:
        assert not isinstance(weights, EncodedWeights)
        self.loaded = [*getattr(self, "loaded", []), (version, digest(weights))]
        super().load_weights(version, weights)


class Node:
    """A learner with checkpoints in ``folder`` and, unless ``every_rounds`` is 0, a partner."""

    def __init__(
        self, folder: Path, *, every_rounds: int = 2, seed: int = 0, rule: AveragingRule | None = None
    ) -> None:
        self.events: list[Event] = []
        self.policy = Policy.load(PolicySection(device="cpu"))
        config = Config(name="ann", seed=seed, learner=SECTION, checkpoint=CheckpointSection(every_rounds=1000))
        self.optimizer = MasterAdamW(self.policy.trainable(), SECTION)
        self.swarm = Family(folder, self.policy.family, self.policy.trainable())  # before a checkpoint changes them
        checkpoints = folder / "checkpoints"
        self.state, _ = restore(read_newest(checkpoints), checkpoints, self.policy, self.optimizer)
        self._background = BackgroundCheckpoints(checkpoints, keep=2)
        section = AveragingSection(every_rounds=every_rounds)
        self.averager = WeightAverager(
            self.swarm,
            self.optimizer,
            self.policy.family,
            section,
            rule or DenseRule(),
            report=self.events.append,
            clock=lambda: 0.0,
            random=Steady(),
        )
        self.engine = WatchedEngine(self.policy, rows=16, seed=0)
        self.learner = learner_of(
            config,
            self.policy,
            TASKS,
            self.engine,
            HereScorer(TASKS),
            RolloutIntake(None, TASKS, SECTION, lambda: 0.0),
            self.optimizer,
            self.state,
            report=self.events.append,
            clock=lambda: 0.0,
            extras=Extras(
                persistence=Persistence(
                    self._background, config, self.policy, self.optimizer, self.events.append, lambda: 0.0
                ),
                averager=self.averager if every_rounds else None,
            ),
        )

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.learner.round()
            self.averager.settle(WAIT_SECONDS)

    def until_taken_back(self) -> RoundDone:
        """Runs rounds, as many as a trial has, and returns the one that takes the step back."""
        for _ in range(TRIAL_ROUNDS):
            done = self.learner.round()
            if AveragingTakenBack in map(type, self.events):
                return done
        raise AssertionError("the step was not taken back")

    def stop(self) -> None:
        """Ends as when it is asked to: with a checkpoint."""
        self.learner.run(lambda: "asked")
        self.averager.close()
        self._background.close()

    def weights(self) -> str:
        return digest(self.optimizer.masters())

    def outer(self) -> str:
        assert self.state.outer is not None
        return digest(averaging_snapshot(self.state.outer))

    def averaged(self) -> list[Averaged]:
        return [event for event in self.events if isinstance(event, Averaged)]


def test_averaged_weights_are_a_new_version_for_the_engine_also_where_no_step_was_taken(tmp_path: Path) -> None:
    node = Node(tmp_path)
    before = node.learner.round(), node.learner.round()
    node.averager.settle(WAIT_SECONDS)
    third = node.learner.round()
    (event,) = node.averaged()
    assert (event.round, event.partner, event.outer_steps) == (3, "bob", 1)
    assert third.policy_version == before[-1].policy_version + 1  # one, whether or not a step was taken too
    assert node.engine.loaded[-1] == (third.policy_version, digest(node.policy.trainable()))
    assert node.engine.version == third.policy_version


@pytest.mark.parametrize("rule", [DenseRule(), CompressedRule()])
def test_the_state_of_averaging_comes_back_from_a_checkpoint_bit_by_bit(tmp_path: Path, rule: AveragingRule) -> None:
    first = Node(tmp_path, rule=rule)
    first.rounds(4)
    first.stop()
    second = Node(tmp_path, rule=rule)
    assert second.weights() == first.weights() and second.outer() == first.outer()
    assert second.state.outer is not None
    assert (second.state.outer.steps, second.state.outer_round) == (1, 2)
    second.rounds(3)  # the next outer step continues from there, at the round where it would have come without the end
    assert [event.outer_steps for event in second.averaged()] == [2]


def test_an_end_in_the_middle_of_an_exchange_leaves_the_old_weights_exactly(tmp_path: Path) -> None:
    first = Node(tmp_path)
    first.rounds(3)
    first.swarm.may_answer.clear()
    first.swarm.seeking.clear()
    while not first.swarm.seeking.is_set():
        first.learner.round()
        if first.state.round >= first.state.outer_round + 2:
            assert first.swarm.seeking.wait(WAIT_SECONDS)
    weights, outer = first.weights(), first.outer()
    first.stop()
    second = Node(tmp_path, every_rounds=0)
    assert (second.weights(), second.outer()) == (weights, outer)


def test_a_checkpoint_without_outer_weights_begins_afresh_and_one_that_lacks_a_part_is_refused(tmp_path: Path) -> None:
    before = Node(tmp_path, every_rounds=0)
    before.rounds(1)
    before.stop()
    node = Node(tmp_path)
    assert node.state.outer is None
    node.rounds(2)
    assert node.state.outer is not None and node.state.outer.steps == 1
    tensors = noloco.snapshot(node.state.outer)
    tensors.pop(next(name for name in tensors if name.startswith("averaging/momentum/")))
    with pytest.raises(StorageError, match="does not fit this policy"):
        noloco.restore(tensors, node.policy.trainable())


def test_a_node_that_never_averages_keeps_the_outer_weights_that_it_was_left(tmp_path: Path) -> None:
    first = Node(tmp_path)
    first.rounds(3)
    first.stop()
    second = Node(tmp_path, every_rounds=0)
    second.rounds(1)
    second.stop()
    assert Node(tmp_path, every_rounds=0).outer() == first.outer()
    assert LearnerState().outer is None


def test_an_outer_step_without_memory_for_it_is_taken_after_a_later_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    node.rounds(2)
    with monkeypatch.context() as patched:

        def no_room(*arguments: object) -> dict[str, Tensor]:
            raise torch.OutOfMemoryError("CUDA out of memory.")

        patched.setattr(noloco, "overlapped", no_room)
        before = node.learner.round()
    assert node.averaged() == [] and node.state.outer is None
    assert [e.then for e in node.events if isinstance(e, OutOfMemory)] == ["again", "again", "skip"]
    after = node.learner.round()
    (event,) = node.averaged()
    assert (event.round, event.partner, event.rounds_between) == (4, "bob", 2)  # what was learnt meanwhile is kept
    assert after.policy_version > before.policy_version and node.engine.version == after.policy_version


def test_an_exchange_that_runs_out_of_memory_on_its_thread_is_told_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    node.rounds(2)
    node.averager.settle(WAIT_SECONDS)

    def no_room(*arguments: object, **named: object) -> None:
        raise MemoryError("Unable to allocate 8.00 GiB")

    monkeypatch.setattr(node.swarm, "average", no_room)
    node.averager._pending = node.averager._thread.submit(
        node.averager._exchange,
        node.averager._pending.result().offered,  # type: ignore[union-attr]
    )
    node.averager.settle(WAIT_SECONDS)
    node.learner.round()
    faults = [event for event in node.events if isinstance(event, Fault)]
    assert [(fault.kind, fault.fatal) for fault in faults] == [("memory", False)] and "8.00 GiB" in faults[0].detail
    assert node.state.outer is None and node.averaged()[0].partner is None


def test_a_round_that_shows_harm_takes_the_step_back_before_it_learns_and_the_engine_gets_the_old_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    success = 0.5

    def scored(scorer: HereScorer, items: Sequence[tuple[PromptRef, Sequence[str]]]) -> list[Scores]:
        return [Scores((2 * success, 0.0), (None, None)) for _ in items]

    monkeypatch.setattr(HereScorer, "score", scored)
    node = Node(tmp_path, every_rounds=6)
    node.rounds(7)
    on_trial = node.state.averaging.trial
    assert on_trial is not None and len(node.averaged()) == 1
    assert node.weights() != digest(on_trial.before)
    success = 0.0
    done = node.until_taken_back()
    assert node.weights() == digest(on_trial.before)
    assert node.engine.loaded[-1] == (done.policy_version, digest(node.policy.trainable()))
    assert done.reward == 0.0 and node.state.success.of("basic_arithmetic") > 0.1  # bad rounds are no evidence


def test_a_step_on_trial_survives_a_restart_and_can_still_be_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    success = 0.5

    def scored(scorer: HereScorer, items: Sequence[tuple[PromptRef, Sequence[str]]]) -> list[Scores]:
        return [Scores((2 * success, 0.0), (None, None)) for _ in items]

    monkeypatch.setattr(HereScorer, "score", scored)
    first = Node(tmp_path, every_rounds=6)
    first.rounds(7)
    first.stop()
    assert first.state.averaging.trial is not None
    second = Node(tmp_path, every_rounds=6)
    success = 0.0
    second.until_taken_back()
    assert second.weights() == digest(first.state.averaging.trial.before)
    assert second.state.averaging.known(second.state.policy_version).avoided == ("bob",)
