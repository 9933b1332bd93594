"""What an engine samples over several machines, against one that holds the model."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from node.engines.engine import GenerationRequest, Sample, Sampling
from node.engines.generic import GenericDecoder
from node.engines.torch import TorchEngine
from node.policy.policy import Policy
from protocol.errors import StageLostError
from tests.node.stages.machines import Machine, owner, saved, whole, worker

REQUESTS = [GenerationRequest(tuple(range(2, 2 + length)), 4, 16) for length in (3, 9, 1, 17, 5)]
SAMPLING = Sampling(temperature=1.0, seed=7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("llama", tmp_path_factory.mktemp("llama"))


def sampled(engine: TorchEngine) -> list[list[Sample]]:
    return engine.generate(REQUESTS, SAMPLING)


def tokens_of(groups: list[list[Sample]]) -> list[list[list[int]]]:
    return [[each.token_ids.tolist() for each in group] for group in groups]


def engine_of(policy: Policy, rows: int = 6) -> TorchEngine:
    """With fewer rows than completions, so that rows join and leave."""
    return TorchEngine(policy, rows=rows, seed=1)


@pytest.mark.parametrize("architecture", ["llama", "qwen3-sliding", "gemma3"])
@pytest.mark.parametrize(("cuts", "batches"), [((1, 3), 1), ((1, 3), 3), ((3,), 8)])
def test_samples_are_those_of_one_machine_token_by_token(
    tmp_path: Path, architecture: str, cuts: tuple[int, ...], batches: int
) -> None:
    folder = saved(architecture, tmp_path)
    alone, (policy, _) = whole(folder), owner(folder, cuts, batches=batches)
    one = engine_of(alone)
    one._decoder = GenericDecoder(alone.base)  # the same arithmetic, in one process
    expected, found = sampled(one), sampled(engine_of(policy))
    assert tokens_of(found) == tokens_of(expected)
    for ours, theirs in zip(found, expected, strict=True):
        for own, other in zip(ours, theirs, strict=True):
            assert own.logps == pytest.approx(other.logps, abs=1e-4)
    assert len({len(each.token_ids) for group in found for each in group}) > 2  # rows left at different times


@pytest.mark.parametrize("dies_at", ["begin", "prefill", "join", "step", "leave"])
def test_a_machine_that_is_lost_while_rows_grow_is_replaced_and_the_samples_are_the_same(
    folder: Path, dies_at: str
) -> None:
    policy, machines = owner(folder)
    engine = engine_of(policy)
    expected = sampled(engine)
    machines[1].dies_at, machines[1].survives = dies_at, 0 if dies_at == "begin" else 2
    with pytest.raises(StageLostError):
        sampled(engine)
    engine.release()
    assert policy.stages.empty == [1]
    policy.stages.fill(1, Machine(worker(folder)))
    assert tokens_of(sampled(engine)) == tokens_of(expected)


def test_batches_are_on_a_machine_at_the_same_time_and_what_is_sampled_does_not_depend_on_it(folder: Path) -> None:
    policy, machines = owner(folder, batches=3)
    engine = engine_of(policy, rows=20)

    def some() -> list[list[list[int]]]:
        groups = engine.advance(REQUESTS, SAMPLING, lambda complete: complete >= 3)
        return [[each.token_ids.tolist() for each in group.sequences] for group in groups]

    expected = some()
    machines[0].meeting, machines[0].meetings = threading.Barrier(3, timeout=60.0), 12  # a hang guard
    assert some() == expected
    assert machines[0].meetings == 0


def test_new_factors_reach_the_machines_before_the_next_samples(folder: Path) -> None:
    policy, _ = owner(folder)
    engine = engine_of(policy)
    first = sampled(engine)
    for parameter in policy.trainable().values():
        parameter.data.mul_(-3.0)
    second = sampled(engine)
    assert tokens_of(second) != tokens_of(first)
    alone = whole(folder)
    for parameter in alone.trainable().values():
        parameter.data.mul_(-3.0)
    one = engine_of(alone)
    one._decoder = GenericDecoder(alone.base)
    assert tokens_of(sampled(one)) == tokens_of(second)


def test_what_rows_take_is_given_back(folder: Path) -> None:
    policy, machines = owner(folder)
    engine = engine_of(policy)
    sampled(engine)
    engine.release()
    assert engine.cache_bytes == 0
    assert [machine.worker.cache_bytes for machine in machines] == [0, 0]
