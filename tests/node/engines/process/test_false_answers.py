"""What an engine sends that cannot be, and an engine that hangs: it is replaced, and the batch is sampled anew."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from node.engines.engine import Sampling
from protocol.streams.engine_batches import Sampled, SamplingBatch
from protocol.streams.engine_messages import EngineAnswer, EngineProgress
from tests.node.engines.process.hosted import ASKED, QUICK, Hosted, Load, Runs, assert_equal, embedded, learner_with


def nan(sampled: list[Sampled]) -> list[Sampled]:
    return [(tokens, np.where(np.arange(len(logps)) == 1, np.nan, logps)) for tokens, logps in sampled]


def certain(sampled: list[Sampled]) -> list[Sampled]:
    return [(tokens, np.full_like(logps, 0.5)) for tokens, logps in sampled]


def longer(sampled: list[Sampled]) -> list[Sampled]:
    return [(np.resize(tokens, 31), np.resize(logps, 31)) for tokens, logps in sampled]


def shorter(sampled: list[Sampled]) -> list[Sampled]:
    return [(np.full(1, 7), logps[:1]) for _, logps in sampled]


def beyond(sampled: list[Sampled]) -> list[Sampled]:
    return [(np.full_like(tokens, 40), logps) for tokens, logps in sampled]


def more(sampled: list[Sampled]) -> list[Sampled]:
    return [*sampled, sampled[0]]


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (nan, "log-probability that is none"),
        (certain, "log-probability that is none"),
        (longer, "31 tokens"),
        (shorter, "have not ended"),
        (beyond, "token 40: there are 40"),
        (more, "completion 7 of 7"),
    ],
)
def test_an_engine_that_samples_what_cannot_be_is_replaced_and_the_batch_is_sampled_anew(
    load_policy: Load, lie: Callable[[list[Sampled]], list[Sampled]], words: str
) -> None:
    runs = Runs(load_policy("qwen3", dtype="bfloat16"))
    with learner_with(runs) as (engine, _):
        wanted = embedded(runs.policy, 1).advance(ASKED, Sampling(seed=3))
        run = runs.started[-1]
        run.engine.samples = lambda batch, enough: lie(super(Hosted, run.engine).sample(batch, enough))
        assert_equal(engine.advance(ASKED, Sampling(seed=3)), wanted)
    assert len(runs.reasons) == 1 and words in runs.reasons[0]


@pytest.mark.parametrize(("field", "value"), [("version", 0), ("weights", bytes(range(32)))])
def test_old_weights_as_new_are_noticed(load_policy: Load, field: str, value: object) -> None:
    runs = Runs(load_policy("qwen3", dtype="bfloat16"))
    with learner_with(runs) as (engine, _):
        runs.alter = once(EngineProgress, lambda answer: msgspec.structs.replace(answer, **{field: value}))
        assert_equal(engine.advance(ASKED, Sampling(seed=3)), embedded(runs.policy, 1).advance(ASKED, Sampling(seed=3)))
    assert len(runs.reasons) == 1 and "it was given version 1" in runs.reasons[0]


def once(kind: type[Any], change: Callable[[Any], EngineAnswer]) -> Callable[[EngineAnswer], EngineAnswer]:
    left = [1]

    def alter(answer: EngineAnswer) -> EngineAnswer:
        if isinstance(answer, kind) and left:
            left.pop()
            return change(answer)
        return answer

    return alter


def test_an_engine_that_answers_and_samples_nothing_is_replaced(load_policy: Load) -> None:
    runs = Runs(load_policy("qwen3", dtype="bfloat16"), patience=replace(QUICK, stall=180.0, poll=0.001))
    ended = threading.Event()

    def hang(batch: SamplingBatch, enough: Callable[[int], bool]) -> list[Sampled]:
        ended.wait(60.0)
        return []

    def passing(answer: EngineAnswer) -> EngineAnswer:
        runs.now += 50.0 * (isinstance(answer, EngineProgress) and len(runs.started) == 1)
        return answer

    runs.alter = passing
    with learner_with(runs) as (engine, _):
        runs.started[-1].engine.samples = hang
        assert_equal(engine.advance(ASKED, Sampling(seed=3)), embedded(runs.policy, 1).advance(ASKED, Sampling(seed=3)))
        ended.set()
    assert runs.reasons == ["the engine sampled nothing for 180 s"]
    assert runs.now < 400.0


def test_an_engine_that_does_not_answer_is_replaced(load_policy: Load) -> None:
    runs = Runs(load_policy("qwen3", dtype="bfloat16"), patience=replace(QUICK, answer=0.5))
    ended = threading.Event()

    def silent(answer: EngineAnswer) -> EngineAnswer:
        ended.wait(60.0)
        return answer

    with learner_with(runs) as (engine, _):
        runs.alter = once(EngineProgress, silent)
        assert_equal(engine.advance(ASKED, Sampling(seed=3)), embedded(runs.policy, 1).advance(ASKED, Sampling(seed=3)))
        ended.set()
    assert "hangs" in runs.reasons[0]
