"""Rounds that run out of memory in each of their phases: the node learns what it would have learnt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from node.checkpoints.checkpoints import read_newest
from node.configuration import LearnerSection, ObjectiveSection
from node.events import CheckpointSaved, Event, OutOfMemory, RoundDone
from node.fit.fitted import Sizes
from node.learner.memory import phases
from node.learner.memory.device_memory import DeviceMemory
from node.learner.steps import step
from protocol.errors import TooLittleMemoryError
from tests.node.learner.letter_node import Node
from tests.node.learner.memory.failing_operation import FailsAt

SECTION = LearnerSection(own_groups=4, completions=4, learning_rate=1e-2)
ROWS = 32  # half of them suffice for a round
ROUNDS = 3
Weights = dict[str, Tensor]


def run(failing: FailsAt | None = None, *, at_round: int = 1, **settings: Any) -> Node:
    """Runs a node; ``failing`` is active in one of its rounds."""
    node = Node("ann", rows=ROWS, learner=SECTION, **settings)
    for number in range(ROUNDS):
        if failing is not None and number == at_round:
            with failing:
                node.round()
        else:
            node.round()
    return node


def weights(node: Node) -> Weights:
    return {name: p.detach().clone() for name, p in node.policy.trainable().items()}


def ran_out(node: Node) -> list[tuple[str, str]]:
    return [(e.phase, e.then) for e in node.events if isinstance(e, OutOfMemory)]


def told(node: Node) -> list[tuple[int, float, float | None, int]]:
    return [(e.round, e.reward, e.loss, e.policy_version) for e in node.events if isinstance(e, RoundDone)]


def assert_same(node: Node, undisturbed: Node) -> None:
    ours, theirs = weights(node), weights(undisturbed)
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []
    assert told(node) == told(undisturbed)
    assert all(torch.equal(t, undisturbed.optimizer.state()[n]) for n, t in node.optimizer.state().items())


@pytest.fixture(scope="module")
def undisturbed() -> Node:
    return run()


@pytest.mark.parametrize(
    ("kind", "place", "phase"),
    [
        ("aten.zeros.default", 0.0, "generate"),  # before the first token
        ("aten.log_softmax.int", 0.3, "generate"),  # in the middle of sampling
        ("aten.embedding.default", 1.0, "learn"),  # the last forward pass
        ("aten.silu_backward.default", 0.5, "learn"),
        ("aten.linalg_vector_norm.default", 0.5, "learn"),  # of the step
        ("aten.empty.memory_format", 1.0, "learn"),  # room for the step, the last that it allocates
        ("aten._foreach_add_.Scalar", 0.5, None),  # counting the step: completed on the spot
        ("aten._fused_adamw_.default", 0.5, None),  # the step itself
        ("aten.copy_.default", 1.0, "publish"),  # packing the engine's weights
    ],
)
def test_an_operation_that_runs_out_changes_nothing_in_the_end(
    kind: str, place: float, phase: str | None, undisturbed: Node
) -> None:
    counting = FailsAt(kind=kind)
    run(counting)
    failing = FailsAt(round(place * (counting.seen - 1)), kind=kind)
    node = run(failing)
    assert failing.raised == 1
    assert [found for found, _ in ran_out(node)] == ([] if phase is None else [phase])
    assert_same(node, undisturbed)


def test_a_step_that_is_taken_stays_taken_once_where_memory_runs_out_in_measuring_it() -> None:
    def learnt(failing: FailsAt) -> Node:
        node = Node("ann", rows=ROWS, learner=LearnerSection(own_groups=8, completions=4))
        node.round()
        with failing:
            node.round()
        return node

    kind = "aten.embedding.default"
    measured = learnt(counting := FailsAt(kind=kind))
    node = learnt(failing := FailsAt(counting.seen - 1, kind=kind))
    assert failing.raised == 1 and ran_out(node) == []
    (*_, done), (*_, same) = ([e for e in each.events if isinstance(e, RoundDone)] for each in (node, measured))
    assert done.step_kl is None and (same.step_kl or 0.0) > 0
    assert_same(node, measured)


def test_moments_that_cannot_all_be_allocated_are_allocated_in_the_repeated_step(undisturbed: Node) -> None:
    counting = FailsAt(kind="aten.zeros_like.default")
    first_step = next(number for number, loss in enumerate(told(undisturbed)) if loss[2] is not None)
    run(counting, at_round=first_step)
    node = run(FailsAt(counting.seen // 2, counting.seen - 1, kind="aten.zeros_like.default"), at_round=first_step)
    assert ran_out(node)
    assert_same(node, undisturbed)


@pytest.mark.parametrize("which", [1, 2])
def test_steps_taken_before_memory_ran_out_are_taken_back_and_taken_again(which: int) -> None:
    section = ObjectiveSection(steps=3)
    plain = run(objective=section)
    last_learnt = max(number for number, each in enumerate(told(plain)) if each[2] is not None)
    norms_of_a_step = len(plain.optimizer.masters()) + 1
    failing = FailsAt(norms_of_a_step * which, kind="aten.linalg_vector_norm.default")
    node = run(failing, at_round=last_learnt, objective=section)
    assert failing.raised == 1
    assert [found for found, _ in ran_out(node)] == ["learn"]
    assert_same(node, plain)


def test_the_pass_is_halved_until_it_fits_and_the_gradient_is_the_same_up_to_rounding(undisturbed: Node) -> None:
    real = step.OptimizerSteps.take

    def fits_64(steps: Any, task: Any, *rest: Any) -> Any:
        if task.passes.batch_tokens > 64:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(steps, task, *rest)

    node = Node("ann", rows=ROWS, learner=SECTION)
    roomy = node.learner.learning.steps.passes.batch_tokens
    node.learner.phases._plan = phases.SizePlan(Sizes(ROWS, roomy), Sizes(ROWS, roomy), floors=Sizes(1, 16))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(step.OptimizerSteps, "take", fits_64)
        for _ in range(ROUNDS):
            node.round()
    assert node.learner.learning.steps.passes.batch_tokens == 64
    halvings = [e for e in node.events if isinstance(e, OutOfMemory)]
    assert [(e.before, e.after) for e in halvings][-1] == (128, 64) and {e.round for e in halvings} == {1}
    for name, tensor in weights(undisturbed).items():
        torch.testing.assert_close(weights(node)[name], tensor, atol=1e-4, rtol=1e-3)


def test_a_pass_that_fits_only_recomputed_is_recomputed_and_the_gradient_is_the_same_up_to_rounding(
    undisturbed: Node,
) -> None:
    real = step.OptimizerSteps.take

    def fits_recomputed(steps: Any, task: Any, *rest: Any) -> Any:
        if not task.passes.recompute:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(steps, task, *rest)

    node = Node("ann", rows=ROWS, learner=SECTION)
    roomy = Sizes(ROWS, 4096)
    node.learner.phases._plan = phases.SizePlan(roomy, roomy, floors=Sizes(1, 256, recompute=True))
    node.learner.phases._put(roomy)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(step.OptimizerSteps, "take", fits_recomputed)
        for _ in range(ROUNDS):
            node.round()
    assert ran_out(node) == [("learn", "recompute")]
    passes = node.learner.learning.steps.passes
    assert (passes.batch_tokens, passes.recompute) == (4096, True)
    for name, tensor in weights(undisturbed).items():
        torch.testing.assert_close(weights(node)[name], tensor, atol=1e-4, rtol=1e-3)


def test_rows_are_halved_until_generating_fits(undisturbed: Node) -> None:
    node = Node("ann", rows=ROWS, learner=SECTION)
    real = node.engine.advance

    def fits_8(*arguments: Any) -> Any:
        if node.engine.rows > 8:
            raise MemoryError
        return real(*arguments)

    node.engine.advance = fits_8  # type: ignore[assignment,method-assign]
    done = [node.round() for _ in range(ROUNDS)]
    assert node.engine.rows == 8 and ran_out(node) == [("generate", "halve")] * 2
    assert [each.own_groups for each in done] == [4] * ROUNDS


def fails(times: int, work: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``work`` that first runs out of memory so many times."""
    left = [times]

    def failing(*arguments: Any, **named: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")
        return work(*arguments, **named)

    return failing


def test_a_checkpoint_without_memory_for_it_is_left_out_told_and_the_next_one_is_whole(tmp_path: Path) -> None:
    node = Node("ann", rows=ROWS, learner=SECTION, folder=tmp_path)  # one every two rounds
    node.checkpoints.save = fails(3, node.checkpoints.save)  # type: ignore[method-assign]
    for _ in range(4):
        node.round()
        node.checkpoints._thread.submit(lambda: None).result()
    assert ran_out(node) == [("checkpoint", "again")] * 2 + [("checkpoint", "skip")]
    node.learner.run(lambda: "asked")
    assert [e.round for e in node.events if isinstance(e, CheckpointSaved)] == [4]
    newest = read_newest(tmp_path).snapshot
    assert newest is not None and newest.round == 4


def test_the_smallest_attempt_fails_and_the_run_ends_with_a_remedy() -> None:
    node = Node("ann", rows=ROWS, learner=SECTION)
    node.engine.advance = fails(100, node.engine.advance)  # type: ignore[method-assign]
    with pytest.raises(TooLittleMemoryError, match=r"engine\.rows = 1.*starling fit"):
        node.learner.run(lambda: None)
    assert node.engine.rows == 1 and not any(isinstance(e, RoundDone) for e in node.events)


def test_beside_a_program_that_has_the_card_a_stop_ends_the_waiting_and_the_round_is_not_done(tmp_path: Path) -> None:
    node = Node("ann", rows=ROWS, learner=SECTION, folder=tmp_path)
    node.round()
    runner, slept = node.learner.phases, list[float]()
    runner._memory = lambda: DeviceMemory(total_bytes=100, free_bytes=0, own_bytes=10)
    sizes = runner.sizes
    runner._plan = phases.SizePlan(sizes, sizes, floors=sizes, sleep=slept.append)
    before = weights(node)
    node.engine.advance = fails(100, node.engine.advance)  # type: ignore[method-assign]
    stopped = node.learner.run(lambda: "asked" if len(slept) > 7 else None)
    assert (stopped.because, stopped.round) == ("asked", 1)
    assert [then for _, then in ran_out(node)] == ["again", "again", "wait", "wait"] and sum(slept) == 8
    assert stopped.checkpoint is not None and all(torch.equal(before[n], w) for n, w in weights(node).items())


def test_the_event_reaches_the_supervisor_with_the_round_that_was_under_way() -> None:
    node = run(FailsAt(0, kind="aten.silu_backward.default"))
    events: list[Event] = [e for e in node.events if isinstance(e, OutOfMemory)]
    assert len(events) == 1 and isinstance(events[0], OutOfMemory)
    assert (events[0].round, events[0].key) == (2, "learner.batch_tokens")
    assert events[0].after is not None and events[0].before == 2 * events[0].after
