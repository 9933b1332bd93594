"""Conversations in an engine elsewhere are those of the embedded one: each keeps its row and goes at its own pace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from node.engines.engine import GenerationProgress, Sampling
from node.engines.process.client_conversations import ClientConversations
from node.engines.process.process_engine import ProcessEngine
from protocol.errors import MalformedError, OversizedError
from protocol.streams import engine_messages as messages
from protocol.streams.engine_batches import (
    Observation,
    Received,
    Sampled,
    SamplingBatch,
    Start,
    observe_message,
    opened_observations,
    progress_message,
)
from tests.node.engines.process.hosted import HostedHere, Load, Runs, embedded, learner_with, move
from tests.node.engines.test_turns import Said, asked, assert_alike, partial_delay, written


def conversed(engine: ProcessEngine, *, seed: int = 5, turns: Said | None = None) -> list[GenerationProgress]:
    return engine.advance(asked(), Sampling(1.0, seed), turns=turns or Said())


def near(runs: Runs, *, seed: int = 5) -> list[GenerationProgress]:
    return embedded(runs.policy, 1).advance(asked(), Sampling(1.0, seed), turns=Said())


@pytest.mark.parametrize("rows", [64, 3])
@pytest.mark.parametrize("name", ["qwen3", "llama-scaled"])
def test_they_are_those_of_the_embedded_engine_and_each_prompt_is_computed_once(
    load_policy: Load, monkeypatch: pytest.MonkeyPatch, name: str, rows: int
) -> None:
    runs = Runs(load_policy(name))
    prompts = list[int]()
    with learner_with(runs) as (engine, _):
        engine.rows = rows
        decoder: Any = runs.started[-1].engine._engine._decoder
        prefill = decoder.prefill

        def noted(prefixes: Sequence[Sequence[int]], completions: Sequence[int]) -> Any:
            prompts.extend(map(len, prefixes))
            return prefill(prefixes, completions)

        monkeypatch.setattr(decoder, "prefill", noted)
        found = conversed(engine, turns=Said(partial_delay(rows, 9)))
        assert written(found) == written(near(runs))
        assert_alike(found, near(runs))
    assert sum(prompts) == sum(len(request.prompt_ids) for request in asked())
    assert runs.reasons == []


def test_killed_in_the_middle_they_begin_again_and_are_the_same(load_policy: Load) -> None:
    runs = Runs(load_policy("qwen3", dtype="float32"))

    class Killing(Said):
        def acted(self, *given: Any) -> None:
            super().acted(*given)
            if len(self.told) == 5:
                runs.started[0].die()
            self.told.append(given)

        told: list[Any]

    turns = Killing()
    turns.told = []
    with learner_with(runs) as (engine, _):
        found = conversed(engine, turns=turns)
    assert written(found) == written(near(runs))
    assert len(runs.started) == 2 and len(runs.reasons) == 1


def test_interrupted_between_and_within_actions_they_go_on_where_they_were(load_policy: Load) -> None:
    runs = Runs(load_policy("qwen3"))
    with learner_with(runs) as (engine, weights):
        begun = engine.advance(asked(), Sampling(0.0), lambda complete: complete >= 2, turns=Said())
        assert any(each.partials for each in begun)
        move(runs.policy, 1)
        weights.load(2, runs.policy.trainable())
        again = [replace(of, begun=each) for of, each in zip(asked(), begun, strict=True)]
        whole = engine.advance(again, Sampling(0.0), turns=Said())
        assert_alike(whole, embedded(runs.policy, 2).advance(again, Sampling(0.0), turns=Said()))
        assert any(len(each.segments) == 2 for group in whole for each in group.samples)
    assert runs.reasons == []


def test_where_replies_may_rewrite_what_was_read_or_the_engine_takes_none_they_go_in_step(load_policy: Load) -> None:
    class Rewriting(Said):
        rewrites = True

    runs = Runs(load_policy("qwen3"))
    with learner_with(runs) as (engine, _):
        in_step = written(conversed(engine, turns=Rewriting()))
        assert in_step == written(embedded(runs.policy, 1).advance(asked(), Sampling(1.0, 5), turns=Rewriting()))
    runs.on_start = takes_no_conversations
    with learner_with(runs) as (engine, _):
        assert written(conversed(engine)) == in_step


def takes_no_conversations(run: HostedHere) -> None:
    class Alone(type(run.engine)):  # type: ignore[misc]
        converses = False

    run.engine.__class__ = Alone


def test_after_too_many_losses_the_embedded_engine_converses(load_policy: Load) -> None:
    runs = Runs(load_policy("qwen3"))
    with learner_with(runs) as (engine, _):
        runs.on_start = lambda run: run.die()
        runs.started[0].die()
        assert written(conversed(engine)) == written(near(runs))
    assert [change.embedded for change in runs.told][-1]


BATCH = SamplingBatch((Start(0, (5, 6), 2, 4, converses=True), Start(1, (7,), 1, 3)), 2, 1.0, 3, 4, None)


def handed(*completions: tuple[int, Sequence[int]], running: bool = True) -> messages.EngineProgress:
    sampled: list[tuple[int, Sampled]] = [
        (number, (np.array(ids), np.full(len(ids), -1.0, np.float32))) for number, ids in completions
    ]
    return progress_message(sampled, version=1, weights=bytes(32), running=running, steps=1, complete=0, left=0)


def test_an_engine_that_acts_out_of_turn_is_found() -> None:
    received = Received(BATCH, vocabulary=40, end_ids=(1,))
    assert [number for number, _ in received.take(handed((0, [9, 1]))).actions] == [0]
    with pytest.raises(MalformedError, match="handed over twice"):
        received.take(handed((0, [9, 1])))
    received.observed([Observation(0, (8, 8), 2)])
    with pytest.raises(MalformedError, match="3 tokens: 1 to 2"):
        received.take(handed((0, [9, 9, 1])))


def test_what_was_sampled_of_them_is_whole_once_all_have_ended() -> None:
    received = Received(BATCH, vocabulary=40, end_ids=(1,))
    taken = received.take(handed((0, [9, 1]), (1, [9, 9, 9, 9]), (2, [4, 4, 4])))
    assert ([number for number, _ in taken.actions], taken.groups) == ([0, 1], [1])
    received.observed([Observation(0, (), 0)])
    with pytest.raises(MalformedError, match="1 completions have not ended"):
        received.all(interrupted=False)
    received.observed([Observation(1, (3,), 4)])
    assert received.take(handed((1, [6, 6]), running=False)).actions == []
    assert [ids.tolist() for ids, _ in received.all(interrupted=True)] == [[], [6, 6], [4, 4, 4]]


@pytest.mark.parametrize(
    ("observation", "words"),
    [
        (Observation(1, (8,), 2), "not handed over"),
        (Observation(2, (8,), 2), "not handed over"),
        (Observation(9, (8,), 2), "not handed over"),
        (Observation(0, (40,), 2), "outside the model's 40"),
        (Observation(0, (8,) * 10, 84), "98 tokens in a model's context of 96"),
    ],
)
def test_an_engine_takes_only_what_can_follow_an_action(observation: Observation, words: str) -> None:
    sampled = list[int]()
    conversations = ClientConversations(BATCH, lambda n, _: sampled.append(n), vocabulary=40, context=96)
    conversations.acted(0, np.array([9, 1]), np.zeros(2, np.float32))
    sound = Observation(0, (8,), 3)
    for refused in ([observation], [sound, sound], [sound, Observation(1, (), 0)]):
        with pytest.raises(ValueError, match=words if refused == [observation] else "not handed over"):
            conversations.observe(refused)
    conversations.observe([sound])
    ((number, follows),) = conversations.replies(wait=True)
    assert (sampled, number, follows.said, follows.limit, list(follows.row)) == ([0], 0, (8,), 3, [5, 6, 9, 1, 8])  # type: ignore[union-attr]


def test_interrupted_an_engine_waits_no_longer_for_what_follows() -> None:
    conversations = ClientConversations(BATCH, lambda *_: None, vocabulary=40, context=None)
    assert conversations.replies(wait=True) == []  # nothing is awaited
    conversations.acted(0, np.array([1]), np.zeros(1, np.float32))
    conversations.interrupt()
    assert conversations.replies(wait=True) == []


def test_columns_of_observations_that_disagree_are_refused() -> None:
    sound = [Observation(0, (8, 9), 3), Observation(4, (), 0)]
    assert opened_observations(observe_message(sound)) == sound
    for field in ("which", "lengths", "token_ids", "limits"):
        with pytest.raises(MalformedError):
            opened_observations(msgspec.structs.replace(observe_message(sound), **{field: b"abc"}))
    for field in ("token_ids", "limits"):
        with pytest.raises(OversizedError):
            opened_observations(msgspec.structs.replace(observe_message(sound), **{field: b"\xff" * 8}))
