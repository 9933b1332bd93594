"""An engine elsewhere samples what the embedded one would, and nothing that happens to it loses or changes a batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from node.engines.encoded_weights import EncodedWeights
from node.engines.engine import GenerationProgress, GenerationRequest, Sampling
from node.engines.process.losses import MOST_LOSSES, EngineLoss, StartAgain, TakeOver, after_loss
from node.engines.process.remote_engine import Patience, least_sufficient, patience_with
from protocol.errors import ConfigurationError, EngineLostError
from protocol.streams.engine_batches import HandOver, Sampled, SamplingBatch
from protocol.streams.engine_messages import Welcome
from tests.node.engines.process.hosted import (
    ASKED,
    Hosted,
    HostedHere,
    Load,
    Runs,
    assert_equal,
    embedded,
    learner_with,
    move,
)


@pytest.mark.parametrize("section", [{"dtype": "bfloat16"}, {}, {"adapter_rank": 4}])
def test_it_samples_what_the_embedded_engine_samples_also_after_diffs_and_of_what_was_begun(
    load_policy: Load, section: dict[str, object], tmp_path: Path
) -> None:
    runs = Runs(load_policy("qwen3", **section), files=tmp_path)
    with learner_with(runs) as (engine, weights):
        near = embedded(runs.policy, 1)
        assert_equal(engine.advance(ASKED, Sampling(seed=3)), near.advance(ASKED, Sampling(seed=3)))
        begun = engine.advance(ASKED, Sampling(seed=4), lambda complete: complete >= 1)
        assert_equal(begun, near.advance(ASKED, Sampling(seed=4), lambda complete: complete >= 1))
        assert any(progress.partials for progress in begun)
        move(runs.policy, 1)
        assert weights.load(2, runs.policy.trainable()).form.kind == "diff"
        near, going_on = embedded(runs.policy, 2), [replace(a, begun=b) for a, b in zip(ASKED, begun, strict=True)]
        ended = engine.advance(going_on, Sampling(0.0, seed=5))
        assert_equal(ended, near.advance(going_on, Sampling(0.0, seed=5)))
        assert any(len(each.segments) == 2 for progress in ended for each in progress.samples)
    assert not list(tmp_path.iterdir())
    assert [change.running for change in runs.told] == [True]


def test_a_batch_that_nobody_wants_any_more_ends_before_its_first_token(load_policy: Load) -> None:
    with learner_with(Runs(load_policy("qwen3"))) as (engine, _):
        assert [p.tokens for p in engine.advance(ASKED, Sampling(seed=1), lambda complete: True)] == [0, 0]


def test_it_is_interrupted_in_the_middle_of_a_completion(load_policy: Load) -> None:
    runs = Runs(load_policy("qwen3"))
    looks: list[int] = []

    def halted(complete: int) -> bool:
        looks.append(complete)
        return len(looks) > 5

    def slow(run: HostedHere) -> None:
        def sample(batch: SamplingBatch, enough: Callable[[int], bool]) -> list[Sampled]:
            return Hosted.sample(other, batch, lambda complete: enough(complete) or stopped.wait(0.02))

        other = Hosted(run.engine._policy, merge_adapters=True)
        run.engine.samples = sample
        run.engine.load = other.load  # type: ignore[method-assign]

    stopped = threading.Event()
    runs.on_start = slow
    with learner_with(runs) as (engine, _):
        reached = engine.advance([GenerationRequest([5], 8, 80)], Sampling(seed=1), halted)
    assert 0 < reached[0].tokens < 8 * 80
    assert runs.reasons == []


def test_killed_before_in_and_after_a_batch_the_batch_is_the_same(load_policy: Load) -> None:
    runs = Runs(load_policy("qwen3", dtype="bfloat16"))
    with learner_with(runs) as (engine, weights):
        wanted = embedded(runs.policy, 1).advance(ASKED, Sampling(seed=3))
        runs.started[-1].die()
        assert_equal(engine.advance(ASKED, Sampling(seed=3)), wanted)

        runs.started[-1].engine.samples = dies_in_the_middle(runs.started[-1])
        assert_equal(engine.advance(ASKED, Sampling(seed=3)), wanted)

        move(runs.policy, 1)
        assert weights.load(2, runs.policy.trainable()).form.kind == "diff"
        runs.started[-1].die()
        engine.release()  # which notices it, and raises nothing
        wanted = embedded(runs.policy, 2).advance(ASKED, Sampling(seed=3))
        assert_equal(engine.advance(ASKED, Sampling(seed=3)), wanted)
    assert [change.losses for change in runs.told] == [0, 1, 1, 2, 2, 3, 3]
    assert runs.slept == [after_loss(1).after_seconds] * 3  # type: ignore[union-attr]


def dies_in_the_middle(run: HostedHere) -> Callable[..., list[Sampled]]:
    def sample(batch: SamplingBatch, enough: Callable[[int], bool]) -> list[Sampled]:
        run.die()
        return []

    return sample


def test_killed_in_an_update_it_ends_with_the_new_weights(load_policy: Load) -> None:
    runs = Runs(load_policy("qwen3", dtype="bfloat16"))
    with learner_with(runs) as (engine, weights):
        move(runs.policy, 1)
        weights.load(2, runs.policy.trainable())
        move(runs.policy, 2)
        run = runs.started[-1]
        load = run.engine.load

        def load_and_die(version: int, weights: EncodedWeights) -> None:
            load(version, weights)
            run.die()

        run.engine.load = load_and_die  # type: ignore[method-assign]
        sent = weights.load(3, runs.policy.trainable())
        assert (sent.form.kind, engine.version, len(runs.started)) == ("dense", 3, 2)
        held = weights._held
        assert held is not None and runs.started[-1].engine.measured_hash() == held.target


@pytest.mark.parametrize("change", [{"family": bytes(16)}, {"layout": bytes(16)}, {"vocabulary": 41}, {"major": 2}])
def test_another_model_or_protocol_is_refused_and_after_several_the_embedded_engine_takes_over(
    load_policy: Load, change: dict[str, object]
) -> None:
    runs = Runs(load_policy("qwen3", dtype="bfloat16"))
    runs.alter = lambda answer: msgspec.structs.replace(answer, **change) if isinstance(answer, Welcome) else answer
    with learner_with(runs) as (engine, weights):
        assert len(runs.started) == MOST_LOSSES
        assert [change.embedded for change in runs.told] == [False] * (MOST_LOSSES - 1) + [True]
        assert f"lost {MOST_LOSSES} times in a row" in runs.reasons[-1]
        assert runs.slept == [0.5, 1.0]
        assert_equal(engine.advance(ASKED, Sampling(seed=3)), embedded(runs.policy, 1).advance(ASKED, Sampling(seed=3)))
        move(runs.policy, 1)
        weights.load(2, runs.policy.trainable())
        near = embedded(runs.policy, 2)
        assert_equal(engine.advance(ASKED, Sampling(seed=3)), near.advance(ASKED, Sampling(seed=3)))
        engine.release()
        assert engine.version == 2


def test_what_has_ended_is_told_while_the_rest_is_sampled_and_is_what_is_returned(load_policy: Load) -> None:
    runs = Runs(load_policy("qwen3"))
    told: dict[int, GenerationProgress] = {}
    told_when_sampling_ended: list[int] = []

    def slow(run: HostedHere) -> None:
        sample = run.engine.sample

        def waiting(
            batch: SamplingBatch, enough: Callable[[int], bool], hand_over: HandOver, conversations: None
        ) -> list[Sampled]:
            rest = sample(batch, lambda complete: enough(complete) or (complete > 0 and not first.wait(10)), hand_over)
            told_when_sampling_ended.append(len(told))
            return rest

        run.engine.sample = waiting  # type: ignore[method-assign,assignment]

    first = threading.Event()

    def tell(group: int, reached: GenerationProgress) -> None:
        told[group] = reached
        first.set()

    runs.on_start = slow
    with learner_with(runs) as (engine, _):
        engine.beside = True
        reached = engine.advance(ASKED, Sampling(seed=3), ended=tell)
        assert_equal(reached, embedded(runs.policy, 1).advance(ASKED, Sampling(seed=3)))
        assert list(told) == [1, 0] and all(reached[group] is progress for group, progress in told.items())
        assert told_when_sampling_ended[0] >= 1
        told.clear()
        engine.beside = False
        engine.advance(ASKED, Sampling(seed=3), ended=tell)
        assert told == {}


def test_a_group_that_was_told_stays_as_it_was_where_the_rest_is_sampled_anew(load_policy: Load) -> None:
    runs = Runs(load_policy("qwen3"))
    told: dict[int, GenerationProgress] = {}

    def tell(group: int, reached: GenerationProgress) -> None:
        assert group not in told
        told[group] = reached
        if len(told) == 1:
            runs.started[0].die()

    def from_another_seed(run: HostedHere) -> None:
        if runs.started:
            sample = Hosted.sample
            run.engine.samples = lambda batch, enough: sample(other, replace(batch, seed=batch.seed + 1), enough)

    other = Hosted(runs.policy.separate(), merge_adapters=True)
    runs.on_start = from_another_seed
    with learner_with(runs) as (engine, weights):
        other.load(1, weights.whole())
        engine.beside = True
        reached = engine.advance(ASKED, Sampling(seed=3), ended=tell)
        once, anew = (embedded(runs.policy, 1).advance(ASKED, Sampling(seed=seed)) for seed in (3, 4))
    assert len(runs.started) == 2 and list(told) == [1, 0]
    assert_equal(reached, [anew[0], once[1]])
    assert reached[0] is told[0] and reached[1] is told[1]


def test_an_engine_that_dies_in_every_batch_is_given_up_with_the_weights_that_it_had(load_policy: Load) -> None:
    runs = Runs(load_policy("qwen3", dtype="bfloat16"))

    def mortal(run: HostedHere) -> None:
        run.engine.samples = dies_in_the_middle(run)

    runs.on_start = mortal
    with learner_with(runs) as (engine, _):
        wanted = embedded(runs.policy, 1).advance(ASKED, Sampling(seed=3))
        move(runs.policy, 1)  # the learner goes on, which must not reach the engine that takes over
        assert_equal(engine.advance(ASKED, Sampling(seed=3)), wanted)
        assert runs.told[-1].embedded


def test_memory_that_runs_out_is_told_as_such_and_the_engine_lives(load_policy: Load) -> None:
    runs = Runs(load_policy("qwen3", dtype="bfloat16"))

    def full(batch: SamplingBatch, enough: Callable[[int], bool]) -> list[Sampled]:
        runs.started[-1].engine.samples = None
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with learner_with(runs) as (engine, _):
        runs.started[-1].engine.samples = full
        with pytest.raises(MemoryError, match="out of memory"):
            engine.advance(ASKED, Sampling(seed=3))
        engine.rows = 8
        assert len(engine.advance(ASKED, Sampling(seed=3))[0].samples) == 4
    assert runs.reasons == []


def test_a_prompt_that_fills_the_context_is_refused_before_it_is_sent(load_policy: Load) -> None:
    with learner_with(Runs(load_policy("qwen3"))) as (engine, _):
        with pytest.raises(ConfigurationError, match="leaves no room"):
            engine.advance([GenerationRequest([5] * 96, 1, 4)], Sampling(seed=1))
        with pytest.raises(ValueError, match="rows is 0"):
            engine.rows = 0
        with pytest.raises(ValueError, match="encoded"):
            engine.load_weights(2, {})


def test_a_machine_without_room_for_a_process_generates_in_the_learners_own(load_policy: Load) -> None:
    runs = Runs(load_policy("qwen3", dtype="bfloat16"))

    def no_room() -> None:
        raise EngineLostError("the engine process could not be started", EngineLoss.NOT_STARTED)

    runs.before_start = no_room
    with learner_with(runs) as (engine, _):
        assert_equal(engine.advance(ASKED, Sampling(seed=3)), embedded(runs.policy, 1).advance(ASKED, Sampling(seed=3)))
    assert len(runs.reasons) == MOST_LOSSES and runs.told[-1].embedded


def test_patience_grows_with_the_model_and_is_never_below_the_usual() -> None:
    small, large, on_gpu = (
        patience_with(size, on_cpu=cpu) for size, cpu in ((10**6, True), (10**9, True), (10**9, False))
    )
    assert Patience().stall < small.stall < 200 < large.stall < 3600
    assert on_gpu.stall == Patience().stall
    assert Patience().start < small.start < large.start == on_gpu.start < 600


def test_what_follows_losses_in_a_row() -> None:
    assert [after_loss(losses) for losses in (1, 2, 3, 4)] == [StartAgain(0.5), StartAgain(1.0), TakeOver(), TakeOver()]


def test_the_least_number_of_groups_that_suffices() -> None:
    assert [least_sufficient(k.__le__, 4) for k in (0, 2, 4, 5)] == [0, 2, 4, None]
