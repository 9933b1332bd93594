"""A round's groups from several machines: shared, whole, at the newest version, whatever donors do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from node.engines.donors import donor_past, parts
from node.engines.donors.donated_engine import DonatedEngine
from node.engines.donors.donor_weights import DIFFS, DonorWeights
from node.engines.encoded_weights import EncodedWeights
from node.engines.engine import Sampling
from node.engines.process.channel import Channel
from protocol.errors import UnreachableError
from protocol.streams.engine_batches import Sampled, SamplingBatch
from tests.node.engines.donors.lent import (
    ASKED,
    Village,
    check_whole,
    instead,
    learner_of,
    learner_with_process,
    until_ready,
)
from tests.node.engines.process.hosted import Hosted, Load, Runs, embedded, move

Looked = Callable[[int], bool]


@pytest.mark.parametrize("section", [{}, {"dtype": "bfloat16"}, {"adapter_rank": 4}])
@pytest.mark.parametrize("owns_weights", [False, True])
def test_donors_take_their_share_from_the_newest_weights_after_every_step(
    load_policy: Load, section: dict[str, object], owns_weights: bool
) -> None:
    village = Village(load_policy("qwen3", **section).separate())
    village.comes("ada")
    village.comes("bob")
    with learner_of(village, owns_weights=owns_weights) as engine:
        until_ready(engine, 2)
        for version in (2, 3, 4):
            move(village.policy, version)
            engine.load_weights(version, village.policy.trainable())
            for seed in range(20):  # what is given to whom depends on how fast this machine was
                check_whole(engine.advance(ASKED, Sampling(seed=seed)), version)
                if [each.state for each in village.told[-1].donors] == ["generated", "generated"]:
                    break
        told = village.told[-1]
        assert told.own_groups + sum(each.groups for each in told.donors) == told.groups == len(ASKED)
        assert all(each.groups > 0 and each.tokens > 0 for each in told.donors)
        assert {run.engine._engine.version for run in village.used} == {4}
    assert not village.dropped


def test_donors_help_an_engine_in_a_process_of_its_own_also_when_that_is_lost(load_policy: Load) -> None:
    village = Village(load_policy("qwen3").separate())
    village.comes("ada")
    runs = Runs(village.policy)
    with learner_with_process(village, runs) as (engine, weights):
        until_ready(engine, 1)
        assert not engine.in_process
        for version in (2, 3):
            move(village.policy, version)
            weights.load(version, village.policy.trainable())
            for seed in range(20):
                check_whole(engine.advance(ASKED, Sampling(seed=seed)), version)
                if village.told[-1].donors[0].state == "generated":
                    break
            assert village.told[-1].donors[0].tokens > 0
            runs.started[-1].die()
        check_whole(engine.advance(ASKED, Sampling(seed=1)), 3)
    assert len(runs.started) == 3 and not village.dropped


def test_a_donor_that_lies_is_dropped_where_the_own_engine_is_in_a_process_of_its_own(load_policy: Load) -> None:
    village = Village(load_policy("qwen3").separate())
    instead(village.comes("eve"), lambda batch, enough, honest: claimed_higher(honest.sample(batch, enough)))
    with learner_with_process(village, Runs(village.policy)) as (engine, _):
        for seed in range(200):
            check_whole(engine.advance(ASKED, Sampling(seed=seed)), 1)
            if village.dropped:
                break
            threading.Event().wait(0.02)
    assert "eve" in village.dropped


def claimed_higher(sampled: list[Sampled]) -> list[Sampled]:
    return [(token_ids, logps / np.float32(8)) for token_ids, logps in sampled]


def test_without_donors_it_is_the_own_engine_to_the_token(load_policy: Load) -> None:
    village = Village(load_policy("qwen3").separate())
    with learner_of(village) as engine:
        alone = engine.own.advance(ASKED, Sampling(seed=7))
        for one, other in zip(engine.advance(ASKED, Sampling(seed=7)), alone, strict=True):
            for x, y in zip(one.samples, other.samples, strict=True):
                np.testing.assert_array_equal(x.token_ids, y.token_ids)
    assert not village.told


def test_a_donor_is_given_diffs_and_after_a_reconnection_those_that_it_lacks(load_policy: Load) -> None:
    village = Village(load_policy("qwen3").separate())
    run = village.comes("ada")
    taken: list[tuple[int, bool, int]] = []
    load = run.engine.load

    def noted(version: int, weights: EncodedWeights) -> None:
        load(version, weights)
        taken.append((version, weights.is_diff, len(weights.blob)))

    run.engine.load = noted  # type: ignore[method-assign]
    with learner_of(village) as engine:
        until_ready(engine, 1)  # version 1 has the weights of the model's files: an empty diff says so
        step(village, engine, 2)
        until_ready(engine, 1)
        run.die()
        while engine.donors:
            engine.advance(ASKED, Sampling(seed=1))
        for version in (3, 4):
            step(village, engine, version)
        again = village.comes("ada")
        again.session._engine = again.engine = run.engine  # the process keeps model and weights between sessions
        until_ready(engine, 1)
        check_whole(engine.advance(ASKED, Sampling(seed=2)), 4)
    assert [version for version, _, _ in taken] in ([1, 2, 4], [1, 2, 3, 4])
    assert all(is_diff for _, is_diff, _ in taken) and taken[0][2] < taken[1][2]


def step(village: Village, engine: DonatedEngine, version: int) -> None:
    """A small step, as a learning rate of real models takes, so that diffs are shorter than all weights."""
    with torch.no_grad():
        for parameter in village.policy.trainable().values():
            parameter.view(-1)[version::50] += 0.01
    engine.load_weights(version, village.policy.trainable())


def test_a_donor_that_missed_too_much_gets_all_weights(load_policy: Load) -> None:
    policy = load_policy("qwen3").separate()
    weights = DonorWeights()
    with pytest.raises(RuntimeError):
        weights.updates_from(None, is_loaded=False)
    weights.publish(1, policy.trainable())
    (whole,) = weights.updates_from(b"x" * 32, is_loaded=False)
    assert not whole.weights.is_diff and weights.updates_from(whole.weights.target, is_loaded=True) == []
    for version in range(2, 3 + DIFFS):  # of so small a model the bytes of diffs are the tighter bound
        with torch.no_grad():
            next(iter(policy.trainable().values())).view(-1)[version] += 1.0
        weights.publish(version, policy.trainable())
        assert weights.version == version
        chain = weights.updates_from(whole.weights.target, is_loaded=True)
        if not weights.knows(whole.weights.target):
            break
        assert [each.version for each in chain] == list(range(2, version + 1))
        assert sum(len(each.weights.blob) for each in chain) <= len(whole.weights.blob)
    assert version > 10 and [each.weights.is_diff for each in chain] == [False]


def test_a_donor_that_stalls_costs_its_own_share(load_policy: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "INTERRUPT_SECONDS", 0.2)
    monkeypatch.setattr(parts, "LATE_SECONDS", 0.1)
    village = Village(load_policy("qwen3").separate())
    stalled = threading.Event()

    def never(batch: SamplingBatch, enough: Looked, honest: Hosted) -> list[Sampled]:
        stalled.wait(20.0)
        return honest.sample(batch, enough)

    instead(village.comes("ada"), never)
    village.comes("bob")
    with learner_of(village) as engine:
        until_ready(engine, 1)
        for seed in range(100):
            check_whole(engine.advance(ASKED, Sampling(seed=seed)), 1)
            if [each for each in village.told if ("ada", "lost") in {(d.peer, d.state) for d in each.donors}]:
                break
        lost = next(each for told in village.told for each in told.donors if each.state == "lost")
        assert lost.peer == "ada" and lost.groups > 0 and lost.tokens == 0
        assert "sent nothing" in lost.because
        check_whole(engine.advance(ASKED, Sampling(seed=1)), 1)
        assert [each.peer for each in village.told[-1].donors] == ["bob"]
        stalled.set()


def test_a_slow_donor_is_interrupted_and_its_tokens_are_kept(
    load_policy: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "LATE_SECONDS", 0.1)
    village = Village(load_policy("qwen3").separate())

    def slowly(batch: SamplingBatch, enough: Looked, honest: Hosted) -> list[Sampled]:
        return honest.sample(batch, lambda complete: enough(complete) or pause.wait(0.1))

    pause = threading.Event()
    instead(village.comes("ada"), slowly)
    with learner_of(village) as engine:
        until_ready(engine, 1)
        for seed in range(50):
            check_whole(engine.advance(ASKED, Sampling(seed=seed)), 1)
            if village.told[-1].donors and village.last("ada").groups:
                break
        share = village.last("ada")
        assert share.groups_done < share.groups and share.tokens > 0
        assert share.state == "generated" and not village.dropped
        engine.advance(ASKED, Sampling(seed=1))
        assert village.last("ada").groups <= 1  # what it could finish


def test_a_donor_that_is_killed_in_the_middle_costs_its_own_share_and_comes_back(load_policy: Load) -> None:
    village = Village(load_policy("qwen3").separate())
    run = village.comes("ada")

    def dies(batch: SamplingBatch, enough: Looked, honest: Hosted) -> list[Sampled]:
        run.die()
        return honest.sample(batch, enough)

    with learner_of(village) as engine:
        until_ready(engine, 1)
        instead(run, dies)
        for seed in range(20):
            check_whole(engine.advance(ASKED, Sampling(seed=seed)), 1)
            if village.last("ada").state == "lost":
                break
        assert village.last("ada").state == "lost" and village.last("ada").groups
        village.comes("ada")
        until_ready(engine, 1)
        check_whole(engine.advance(ASKED, Sampling(seed=1)), 1)
        assert village.last("ada").state == "generated"


def test_a_donor_that_is_lost_between_two_generations_is_told_of_as_lost_once(
    load_policy: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    village = Village(load_policy("qwen3").separate())
    village.comes("ada")
    goes = threading.Event()

    def unreachable(peer: str) -> Channel:
        village.used.append(village.waiting_now.pop(peer))
        goes.wait()
        raise UnreachableError("it went")

    monkeypatch.setattr(village, "use", unreachable)
    with learner_of(village) as engine:
        engine.advance(ASKED[:2], Sampling(seed=1))
        (donor,) = engine.donors
        goes.set()
        while not donor.is_lost:
            threading.Event().wait(0.01)
        for seed in range(3):
            engine.advance(ASKED[:2], Sampling(seed=seed))
        assert [[each.state for each in told.donors] for told in village.told] == [["preparing"], ["lost"], []]


def test_a_donor_that_always_fails_rests(load_policy: Load) -> None:
    village = Village(load_policy("qwen3").separate())
    with learner_of(village) as engine:
        for _ in range(donor_past.RESTS_AFTER):
            village.comes("ada").die()
            before = len(village.told)
            while "lost" not in [donor.state for told in village.told[before:] for donor in told.donors]:
                engine.advance(ASKED[:2], Sampling(seed=1))
                threading.Event().wait(0.01)
        sessions = len(village.used)
        village.comes("ada")
        engine.advance(ASKED[:2], Sampling(seed=1))
        assert len(village.used) == sessions and "ada" in village.waiting_now


def test_more_than_was_asked_for_is_a_loss_and_changes_nothing(load_policy: Load) -> None:
    village = Village(load_policy("qwen3").separate())

    def more(batch: SamplingBatch, enough: Looked, honest: Hosted) -> list[Sampled]:
        sampled = honest.sample(batch, enough)
        return [*sampled, sampled[0]]

    run = village.comes("ada")
    with learner_of(village) as engine:
        until_ready(engine, 1)
        instead(run, more)
        for seed in range(20):
            check_whole(engine.advance(ASKED, Sampling(seed=seed)), 1)
            if village.last("ada").state == "lost":
                break
        assert "cannot be" in village.last("ada").because


def claims(change: Callable[[Sampled], Sampled]) -> Callable[[SamplingBatch, Looked, Hosted], list[Sampled]]:
    return lambda batch, enough, honest: [change(each) for each in honest.sample(batch, enough)]


@pytest.mark.parametrize(
    "lie",
    [
        claims(lambda each: (each[0], each[1] - 0.5)),  # every token less likely than it was
        claims(lambda each: (each[0], np.minimum(each[1] + 1.0, 0.0).astype(np.float32))),
        claims(lambda each: (np.array([*[9] * (len(each[0]) - 1), each[0][-1]]), each[1])),  # others than sampled
        claims(lambda each: (each[0], np.full_like(each[1], -0.01))),
    ],
)
def test_a_donor_that_lies_about_log_probabilities_is_dropped_for_good_and_its_samples_unused(
    load_policy: Load, lie: Callable[[SamplingBatch, Looked, Hosted], list[Sampled]]
) -> None:
    village = Village(load_policy("qwen3").separate())
    village.comes("bob")
    run = village.comes("ada")
    with learner_of(village) as engine:
        until_ready(engine, 2)
        instead(run, lie)
        for seed in range(20):
            check_whole(engine.advance(ASKED, Sampling(seed=seed)), 1)
            if village.dropped:
                break
        assert list(village.dropped) == ["ada"]
        assert village.last("ada").state == "dropped" and village.last("ada").tokens == 0
        assert village.last("bob").state == "generated"
        village.waiting_now["ada"] = village.comes("ada")  # as a source would that forgot
        del village.dropped["ada"]
        engine.advance(ASKED, Sampling(seed=1))
        assert [each.peer for each in village.told[-1].donors] == ["bob"]


def test_a_donor_that_samples_from_other_weights_than_it_names_is_dropped(load_policy: Load) -> None:
    village = Village(load_policy("qwen3").separate())
    run = village.comes("ada")
    with learner_of(village) as engine:
        until_ready(engine, 1)
        old = embedded(village.policy.separate(), 1)
        for seed in range(12):
            move(village.policy, seed)
        engine.load_weights(2, village.policy.trainable())
        other = Hosted(old.policy, merge_adapters=True)
        run.engine.samples = other.sample
        for seed in range(20):
            check_whole(engine.advance(ASKED, Sampling(seed=seed)), 2)
            if village.dropped:
                break
        assert list(village.dropped) == ["ada"]


def test_groups_begun_earlier_stay_here_and_enough_groups_end_everybody(load_policy: Load) -> None:
    village = Village(load_policy("qwen3").separate())
    village.comes("ada")
    with learner_of(village) as engine:
        until_ready(engine, 1)
        first = engine.advance(ASKED, Sampling(seed=3), lambda complete: complete >= 10)
        complete = sum(len(each.samples) == 4 for each in first)
        assert 10 <= complete < len(ASKED)
        move(village.policy, 1)
        engine.load_weights(2, village.policy.trainable())
        going_on = [replace(a, begun=b) for a, b in zip(ASKED, first, strict=True)]
        ended = engine.advance(going_on, Sampling(seed=4))
        assert all(len(each.samples) == 4 for each in ended)
        for request, reached in zip(going_on, ended, strict=True):
            assert request.begun is not None
            for kept, now in zip(request.begun.samples, reached.samples, strict=False):
                np.testing.assert_array_equal(kept.token_ids, now.token_ids)
        assert {s.version for each in ended for sample in each.samples for s in sample.segments} == {1, 2}


def test_memory_that_runs_out_here_leaves_the_donors_usable(load_policy: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    village = Village(load_policy("qwen3").separate())
    village.comes("ada")
    with learner_of(village) as engine:
        until_ready(engine, 1)
        with monkeypatch.context() as patched:
            patched.setattr(engine.own, "advance", _out_of_memory)
            with pytest.raises(MemoryError):
                engine.advance(ASKED, Sampling(seed=1))
        until_ready(engine, 1)
        check_whole(engine.advance(ASKED, Sampling(seed=2)), 1)
        assert village.last("ada").state == "generated"


def _out_of_memory(*given: object, **named: object) -> None:
    raise MemoryError


def test_a_donor_with_little_memory_samples_fewer_rows_at_a_time(load_policy: Load) -> None:
    village = Village(load_policy("qwen3").separate())
    rows: list[int] = []

    def little(batch: SamplingBatch, enough: Looked, honest: Hosted) -> list[Sampled]:
        rows.append(batch.rows)
        if batch.rows > 4:
            raise MemoryError
        return honest.sample(batch, enough)

    instead(village.comes("ada"), little)
    with learner_of(village) as engine:
        until_ready(engine, 1)
        for seed in range(3):
            check_whole(engine.advance(ASKED, Sampling(seed=seed)), 1)
        assert rows[:3] == [16, 8, 4] and set(rows[3:]) <= {4}
        assert village.last("ada").state == "generated"


def test_that_the_last_donor_has_left_is_told_once(load_policy: Load) -> None:
    village = Village(load_policy("qwen3").separate())
    run = village.comes("ada")
    with learner_of(village) as engine:
        until_ready(engine, 1)
        run.die()
        for _ in range(50):
            engine.advance(ASKED, Sampling(seed=1))
            if not village.told[-1].donors:
                break
            threading.Event().wait(0.01)
        for _ in range(3):  # of which nothing is told
            engine.advance(ASKED, Sampling(seed=1))
        told = [len(each.donors) for each in village.told]
        assert told[-2:] == [1, 0] and told.count(0) == 1


def test_donors_have_their_share_also_where_more_groups_are_launched_than_needed(load_policy: Load) -> None:
    village = Village(load_policy("qwen3").separate())
    village.comes("ada")
    with learner_of(village) as engine:
        for seed in range(100):
            reached = engine.advance(ASKED, Sampling(seed=seed), lambda complete: complete >= 12)
            assert sum(len(each.samples) == 4 for each in reached) >= 12
            if village.told and village.last("ada").groups >= 4:
                break
            threading.Event().wait(0.01)
        assert village.last("ada").groups >= 4
