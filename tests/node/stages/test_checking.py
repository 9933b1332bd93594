"""Whether an owner finds a machine that computes something else than its layers give, and leaves no trace."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from node.fit.stages.schedule import OwnerOrder
from node.learner.objective.forward import PassSettings
from node.policy.held_layers import hold_factors, hold_layers
from node.policy.policy import Policy
from node.stages.checking import BOUNDS, CHECK_SHARE, StageChecks, differences
from node.stages.link import StageLink
from node.stages.policy import StagedPolicy
from node.stages.samples import Samples
from node.stages.stages import Stages
from node.stages.worker import StageWorker
from tests.node.learner.letter_node import Node
from tests.node.stages.machines import ARCHITECTURES, LAYERS, empty, owner, saved, scatter, worker
from tests.node.stages.test_gathering import ROOM, Machines, Owner, node_of, owner_of, weights_hash

PROMPTS = ([5, 9, 13, 2, 30, 7], [8, 8, 21, 3], [17, 4, 4, 29, 11])
WHOLE, IN_PIECES = PassSettings(512), PassSettings(512, recompute=True, chunk_tokens=16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("qwen2", tmp_path_factory.mktemp("qwen2"))


def samples_of(policy: StagedPolicy, passes: PassSettings = WHOLE) -> Samples:
    return Samples(policy, lambda draws: draws.choice(PROMPTS), passes, random.Random(3))


def checks_of(found: Owner, clock: Callable[[], float] = lambda: 0.0, **more: Any) -> StageChecks:
    """With a clock that stands still a check takes no time, so that the next one is always due."""
    own = worker(found.machines.folder)
    return StageChecks(found.policy.stages, samples_of(found.policy), own, found.gathering, clock=clock, **more)


def two(folder: Path, *spare: tuple[float, str, int]) -> Owner:
    return owner_of(Machines(folder, [(0.0, "ann", ROOM), (0.0, "bob", ROOM), *spare]))


class Rounding:
    """A machine that computes in a wider dtype than it answers in, so that it rounds otherwise than the owner."""

    def __init__(self, folder: Path, dtype: torch.dtype, wider: torch.dtype) -> None:
        self.worker = worker(folder, wider)
        self._dtype = dtype

    def __getattr__(self, name: str) -> Any:
        def ask(*given: Any) -> Any:
            answer = getattr(self.worker, name)(*given)
            if callable(answer):
                return lambda: answer().to(self._dtype)
            return answer.to(self._dtype) if isinstance(answer, Tensor) else answer

        return ask


@pytest.mark.parametrize(
    ("architecture", "passes"),
    [("llama", IN_PIECES), *((name, WHOLE) for name in ARCHITECTURES if name not in ("neox", "llama"))],
)
def test_a_machine_of_any_architecture_that_computes_alike_differs_by_nothing(
    architecture: str, passes: PassSettings, tmp_path: Path
) -> None:
    model = saved(architecture, tmp_path)
    policy, _ = owner(model)
    own, bounds = worker(model), BOUNDS[torch.float32]
    for place in policy.stages.places:
        seen = samples_of(policy, passes).witnessed(place)
        found = list(differences(seen, own, place.layers, place.told, bounds))
        assert len(found) == 3 + len(place.layers)
        assert max(each.found for each in found) < 1e-6
    assert own.held_bytes == 0


@pytest.mark.parametrize(
    ("dtype", "wider"), [(torch.float32, torch.float64), (torch.bfloat16, torch.float32)], ids=["float32", "bfloat16"]
)
def test_a_machine_that_rounds_otherwise_is_far_within_the_bounds(
    folder: Path, dtype: torch.dtype, wider: torch.dtype
) -> None:
    policy = replace(empty(folder), dtype=dtype)
    hold_factors(policy)
    hold_layers(policy, folder, range(1), ends=True, factors=False)
    scatter(policy)
    stages = Stages(policy.trainable(), [range(1, LAYERS)])
    stages.fill(0, cast("StageLink", Rounding(folder, dtype, wider)))
    policy = StagedPolicy.of(policy, 1, stages, OwnerOrder(1, 1))
    place = stages.places[0]
    seen = samples_of(policy).witnessed(place)
    found = list(differences(seen, worker(folder, dtype), place.layers, place.told, BOUNDS[dtype]))
    assert 0 < max(each.share for each in found) < 0.2


def damaged(of: StageWorker) -> None:
    with torch.no_grad():
        weight = of.policy.base.base_model.layers[2].mlp.down_proj.base_layer.weight  # type: ignore[union-attr, index]
        weight[3, 5] += 1.0


def of_another_row(of: StageWorker) -> None:
    forward = of.forward
    of.forward = lambda *given: (lambda left: lambda: left().roll(1, 0))(forward(*given))  # type: ignore[method-assign]


def lazy_in_generating(of: StageWorker) -> None:
    of.step = lambda hidden, *batch: hidden  # type: ignore[method-assign]


def scaling_gradients(of: StageWorker) -> None:
    backward = of.backward
    of.backward = lambda *given: (lambda left: lambda: 1.1 * left())(backward(*given))  # type: ignore[method-assign]


def scaling_sums(of: StageWorker) -> None:
    gradients = of.gradients
    of.gradients = lambda: {name: 1.1 * each for name, each in gradients().items()}  # type: ignore[method-assign]


def leaving_out_a_sum(of: StageWorker) -> None:
    gradients = of.gradients
    of.gradients = lambda: dict(list(gradients().items())[1:])  # type: ignore[method-assign]


def with_stale_factors(of: StageWorker) -> None:
    of.load = lambda factors: None  # type: ignore[method-assign]


FAULTS: list[tuple[Callable[[StageWorker], None], str]] = [
    (damaged, "hidden states by"),
    (of_another_row, "hidden states by"),
    (with_stale_factors, "hidden states by"),
    (lazy_in_generating, "hidden states in generating by"),
    (scaling_gradients, "gradients of hidden states by"),
    (scaling_sums, "gradients of the factors of layer"),
    (leaving_out_a_sum, "gradients of the factors of layer"),
]


@pytest.mark.parametrize(("spoil", "names"), FAULTS, ids=[spoil.__name__ for spoil, _ in FAULTS])
def test_a_machine_that_computes_something_else_fails_its_first_check_and_is_not_taken_again(
    folder: Path, spoil: Callable[[StageWorker], None], names: str
) -> None:
    found = two(folder, (30.0, "eve", ROOM))
    machines, first = found.machines, found.machines.used["ann"]
    spoil(first.worker)

    def close() -> None:
        del machines.used["ann"]  # so it offers itself again at once

    first.close = close  # type: ignore[method-assign]
    assert checks_of(found).regained(machines.should_stop)
    assert found.policy.stages.empty == []
    assert set(machines.used) == {"bob", "eve"} and machines.seconds >= 30
    waited = next(event for event in found.events if event.waits and event.stages)
    assert waited.stages[0].peer == ""
    assert "differs from what its layers give" in waited.stages[0].because and names in waited.stages[0].because
    last = found.events[-1]
    assert [each.peer for each in last.stages] == ["eve", "bob"]
    assert all(each.checked_seconds is not None and each.off < 0.01 for each in last.stages)


def test_machines_are_checked_in_turn_and_only_for_a_small_share_of_the_time(folder: Path) -> None:
    found, now = two(folder), [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    checks, checked = checks_of(found, clock), list[list[float | None]]()
    assert checks.regained(found.machines.should_stop)
    first = found.gathering.clock()
    for _ in range(400):
        found.machines.seconds += 1.0
        checks.in_turn()
        checked.append([found.gathering.checked_at(number) for number in (0, 1)])
    times = sorted({each for pair in checked for each in pair if each is not None} - {first})
    assert len(times) == 4  # each look takes a second of the clock, and each check one more
    assert all(later - earlier >= 0.95 / CHECK_SHARE for earlier, later in pairwise(times))
    last_first, last_second = checked[-1]
    assert {last_first, last_second} == set(times[-2:])


def test_a_machine_that_fails_later_is_lost_and_the_reason_says_since_when_and_names_a_checkpoint(folder: Path) -> None:
    found, asked = two(folder, (0.0, "eve", ROOM)), list[float]()

    def checkpoint_before(seconds: float) -> Path:
        asked.append(seconds)
        return Path("checkpoints/round-000007")

    checks = checks_of(found, checkpoint_before=checkpoint_before)
    assert checks.regained(found.machines.should_stop)
    good = found.gathering.clock()
    damaged(found.machines.used["ann"].worker)
    found.machines.seconds += 125
    checks.in_turn()
    assert found.policy.stages.empty == [0]
    found.gathering.tell()
    because = found.events[-1].stages[0].because
    assert "2 min 05 s" in because and "--resume checkpoints/round-000007" in because
    assert asked == [good]
    assert checks.regained(found.machines.should_stop)
    assert set(found.machines.used) == {"ann", "bob", "eve"} and found.policy.stages.empty == []


@pytest.mark.parametrize("dies_at", ["prefill", "forward", "gradients"])
def test_a_machine_that_is_lost_in_a_check_of_another_is_replaced_and_may_come_back(folder: Path, dies_at: str) -> None:
    found = two(folder, (0.0, "eve", ROOM))
    found.machines.used["bob"].dies_at = dies_at
    assert checks_of(found).regained(found.machines.should_stop)
    assert found.policy.stages.empty == []
    assert [found.gathering.checked_at(number) is not None for number in (0, 1)] == [True, True]


def test_an_owner_without_memory_for_a_check_goes_on_with_a_machine_that_is_not_checked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = two(folder)
    checks = checks_of(found)

    def no_room(*given: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(StageWorker, "free", no_room)
    assert checks.regained(found.machines.should_stop)
    assert found.gathering.unchecked == [0, 1]


def state_hash(node: Node, policy: Policy) -> str:
    moments = b"".join(each.numpy().tobytes() for _, each in sorted(node.optimizer.state().items()))
    return weights_hash(policy) + hashlib.sha256(moments).hexdigest()


def test_rounds_with_checks_have_weights_and_moments_of_rounds_without(folder: Path) -> None:
    rounds = list[list[tuple[str, float | None]]]()
    for is_checked in (False, True):
        found = two(folder)
        node, checks = node_of(found), checks_of(found)
        numbers_before = torch.random.get_rng_state()
        if is_checked:
            assert checks.regained(found.machines.should_stop)
        rounds.append([])
        for _ in range(3):
            done = node.round()
            rounds[-1].append((state_hash(node, found.policy), done.loss))
            if is_checked:
                assert checks.regained(found.machines.should_stop)
                checks.in_turn()
        assert torch.equal(torch.random.get_rng_state(), numbers_before)
        assert (found.gathering.checked_at(0) is not None) == is_checked
    assert rounds[0] == rounds[1]
    assert len({each for each, _ in rounds[0]}) == 3


def test_a_phase_goes_on_with_another_machine_after_a_check_that_failed(folder: Path) -> None:
    undisturbed, found = two(folder), two(folder, (0.0, "eve", ROOM))
    expected, node, checks = node_of(undisturbed), node_of(found), checks_of(found)
    assert checks.regained(found.machines.should_stop)
    for number in range(2):
        losses = expected.round().loss, node.round().loss
        assert losses[0] == losses[1]
        if number == 0:
            found.machines.used["ann"].worker.step = lambda hidden, *batch: hidden  # type: ignore[method-assign]
            checks.in_turn()
            assert found.policy.stages.empty == [0]
    assert "eve" in found.machines.used
    assert weights_hash(found.policy) == weights_hash(undisturbed.policy)
