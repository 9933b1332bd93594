"""Conversations in a learner's round: tiny random models on letters, the real engine, rewards by replay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from node.configuration import EvaluationSection, LearnerSection, ObjectiveSection
from node.engines.engine import GenerationRequest, Sample, Sampling, Segment
from node.engines.resumption import row_of
from node.engines.torch import TorchEngine
from node.environments.conversation import ConversationTask, Played
from node.events import Evaluated, OutOfMemory, Samples
from node.learner.answers.right_answers import Rehearsal
from node.learner.generation.conversations import Conversing
from node.learner.generation.generation import Generation, RoundPlan, round_plan
from node.learner.generation.own_rollouts import Rollout, can_be_shared, group_of
from node.learner.generation.unfinished import restored_unfinished, snapshot_of_unfinished
from node.learner.objective.advantages import AdvantageRule
from node.learner.objective.batch import RaggedSpans, TrainingCompletion
from node.learner.objective.forward import MicroBatch, Network, completion_logps
from node.learner.objective.loss import BatchTotals, objective_loss
from node.learner.objective.training_groups import own_training_group
from node.learner.steps.step import influenced
from node.tasks.scorer import Scores, ScoringFault
from node.tasks.task import Prompt, Task
from node.tasks.worker import FaultReason
from protocol.messages import PromptRef
from protocol.rollouts import FinishReason, decode_group, encode_group
from tests.node.learner.letter_environment import FindLetter
from tests.node.learner.letter_node import HereScorer, LetterTask, Node, policy

KNOWN: dict[str, Task] = {"find": ConversationTask(FindLetter()), "first": LetterTask("first")}
SECTION = LearnerSection(own_groups=6, completions=4, foreign_groups=4, learning_rate=1e-2)


def generation(section: LearnerSection = SECTION, known: dict[str, Task] = KNOWN, context: int = 32) -> Generation:
    own = policy()
    engine = TorchEngine(own, rows=16, seed=0)
    return Generation(engine, known, own.tokens, HereScorer(known), section, temperature=1.0, context=context)


def plan(section: LearnerSection = SECTION, known: dict[str, Task] = KNOWN) -> RoundPlan:
    return round_plan(section, list(known), "seed", 0)


def conversations(found: list[Rollout]) -> list[Rollout]:
    return [rollout for rollout in found if rollout.prompt.ref.task == "find"]


def test_ids_that_are_trained_on_are_those_sampled_and_observations_stand_between() -> None:
    made = generation()
    replies = {tuple(made.tokens.reply_ids(text, after=1)) for text in "ef"}
    sampled: list[tuple[tuple[int, ...], Any]] = []
    advance = made.engine.advance

    def noted(requests: Any, *rest: Any) -> Any:
        reached = advance(requests, *rest)
        sampled.extend((tuple(s.token_ids.tolist()), s.observed) for each in reached for s in each.samples)
        return reached

    made.engine.advance = noted  # type: ignore[method-assign, assignment]
    several = 0
    for rollout in conversations(made.run(plan(), ()).rollouts):
        group = own_training_group(
            rollout, list(range(len(rollout.samples))), ObjectiveSection(), AdvantageRule("group")
        )
        rows = {c.row_ids.tobytes(): c for c in group.completions}
        for sample in rollout.samples:
            assert (tuple(sample.token_ids.tolist()), sample.observed) in sampled
            assert all(ids in replies for _, ids in sample.observed)
            several += bool(sample.observed)
            completion = rows[np.array(row_of((), sample)).tobytes()]
            assert completion.token_ids.tolist() == sample.token_ids.tolist()
            assert completion.row_ids[completion.row_places].tolist() == sample.token_ids.tolist()
    assert several > 0


def test_log_probabilities_of_the_row_are_those_under_which_the_engine_sampled() -> None:
    own = policy()
    made = generation()
    network = Network.of(own.model, own.tokens.vocabulary)
    for rollout in conversations(made.run(plan(), ()).rollouts):
        group = own_training_group(rollout, [0.0, 1.0, 2.0, 3.0], ObjectiveSection(), AdvantageRule("group"))
        batch = MicroBatch((group.prompt_ids,), (0,) * len(group.completions), group.completions)
        with torch.no_grad():
            logps, _ = completion_logps(network, batch)
        behaviour = np.concatenate([each.alignment.behaviour_logps for each in group.completions])
        np.testing.assert_allclose(logps.numpy(), behaviour, atol=1e-4)


def test_equal_plans_give_equal_conversations_and_their_tokens_are_counted() -> None:
    first, again = (generation().run(plan(), ()) for _ in range(2))
    assert [rollout.texts for rollout in first.rollouts] == [rollout.texts for rollout in again.rollouts]
    assert first.tokens == sum(rollout.tokens for rollout in first.rollouts)
    assert all(rollout.conversed is not None for rollout in conversations(first.rollouts))


def test_conversations_are_the_same_whatever_the_rows_and_where_several_environments_answer_at_once() -> None:
    class Elsewhere(HereScorer):
        def submit(self, ref: PromptRef, texts: Sequence[str]) -> list[Future[Scores]]:
            return [threads.submit(partial(self._score, ref, [text])) for text in texts]

    first = generation().run(plan(), ())
    with ThreadPoolExecutor(4) as threads:
        for rows in (16, 5, 2):
            made = generation()
            made.engine.rows = rows
            made.scorer = Elsewhere(KNOWN)
            again = made.run(plan(), ())
            assert [rollout.texts for rollout in again.rollouts] == [rollout.texts for rollout in first.rollouts]
            assert [rollout.conversed for rollout in again.rollouts] == [each.conversed for each in first.rollouts]


def test_memory_that_runs_out_amid_conversations_halves_the_rows_and_changes_no_round() -> None:
    undisturbed, node = (Node("alone", known=KNOWN, learner=SECTION) for _ in range(2))
    decoder: Any = node.engine._decoder
    rejoin, left = decoder.rejoin, [2]

    def fails(*given: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise MemoryError
        rejoin(*given)

    decoder.rejoin = fails
    rows = node.engine.rows
    done, expected = node.round(), undisturbed.round()
    assert node.engine.rows < rows
    assert [each.then for each in node.events if isinstance(each, OutOfMemory)] == ["halve"] * 2
    assert done.reward_by_task == expected.reward_by_task
    assert done.turns_by_task == expected.turns_by_task


def test_groups_interrupted_between_and_within_turns_pass_a_checkpoint_and_are_resumed() -> None:
    made, section = generation(SECTION.model_copy(update={"overprovision": 1.0})), SECTION
    made.engine.rows = 7
    first = made.run(plan(made.section), ())
    tensors, records = snapshot_of_unfinished(first.unfinished)
    restored = restored_unfinished(tensors, json.loads(json.dumps(records)))
    begun = [each for group in restored for each in group.progress.sequences]
    assert any(each.observed for each in begun)
    assert [each.observed for each in begun] == [e.observed for g in first.unfinished for e in g.progress.sequences]
    made.section = section.model_copy(update={"own_groups": len(restored)})
    second = made.run(RoundPlan(len(restored), (), 3), restored)
    assert second.unfinished == ()
    ended = {rollout.prompt.ref: rollout for rollout in second.rollouts}
    for group in restored:
        rows = [row_of((), sample) for sample in ended[group.ref].samples]
        for each in group.progress.sequences:
            assert any(row[: len(row_of((), each))] == row_of((), each) for row in rows)
    assert all(rollout.conversed is not None for rollout in conversations(second.rollouts))


def test_conversation_ends_where_the_context_has_no_room_for_another_action() -> None:
    made = generation(context=12)
    found = conversations(made.run(plan(), ()).rollouts)
    for rollout in found:
        for sample in rollout.samples:
            row = sum(len(ids) for _, ids in sample.observed) + len(sample.token_ids)
            assert len(rollout.prompt_ids) + row <= 12


def test_conversations_are_left_out_once_generation_is_halted_and_answers_are_kept() -> None:
    calls = iter([False] * 6 + [True] * 1000)
    found = generation().run(plan(), (), halted=lambda: next(calls))
    assert all(rollout.conversed is not None or rollout.prompt.ref.task == "first" for rollout in found.rollouts)


@pytest.mark.parametrize("changes", [{"resample": 2}, {"overprovision": 0.5}], ids=["resample", "overprovision"])
def test_prompts_are_replaced_and_interrupted_as_for_single_answers(changes: dict[str, Any]) -> None:
    section = SECTION.model_copy(update=changes)
    found = generation(section).run(plan(section), ())
    assert found.rollouts
    assert all(rollout.conversed is not None for rollout in conversations(found.rollouts))


def test_round_learns_from_conversations_and_measures_them() -> None:
    node = Node("alone", known=KNOWN, learner=SECTION, evaluation=EvaluationSection(every_rounds=2, prompts=4))
    done = [node.round() for _ in range(2)]
    assert all(0 < each.reward_by_task["find"] < 1 for each in done)
    used = done[0].turns_by_task["find"]
    assert done[0].turns_by_task.keys() == {"find"}
    assert sum(each.episodes for each in used) == done[0].completions_by_task["find"]
    assert sum(each.won for each in used) / sum(each.episodes for each in used) == done[0].reward_by_task["find"]
    assert [each.turns for each in used] == sorted({each.turns for each in used} & {1, 2, 3})
    assert all(each.won == each.episodes for each in used if each.turns < 3)  # an earlier end is one that was found
    assert done[0].engine_gap is not None
    assert done[0].engine_gap < 1e-5
    assert done[1].policy_version == 2
    assert sum("find" in each.reward_by_task for each in node.events if isinstance(each, Evaluated)) == 1
    assert any(isinstance(each, Samples) for each in node.events)
    assert node.faults() == []


def test_group_that_others_get_says_what_was_done_and_only_a_digest_of_what_followed() -> None:
    made = generation()
    for rollout in conversations(made.run(plan(), ()).rollouts):
        assert rollout.conversed is not None
        assert can_be_shared(rollout, made.tokens)
        group = group_of(rollout, rollout.conversed.rewards, made.tokens, family=bytes(16))
        assert group.converses
        assert decode_group(encode_group(group)).completions[0].actions == group.completions[0].actions
        rows = zip(rollout.samples, group.completions, rollout.conversed.played, strict=True)
        for sample, completion, played in rows:
            assert played is not None
            actions = [made.tokens.text_of(turn.token_ids.tolist()) for turn in completion.turns()]
            assert [turn.text for turn in completion.turns()] == actions
            assert len(actions) == 1 + len(sample.observed)
            ends = [turn.finish is FinishReason.STOP for turn in completion.turns()]
            assert ends == [int(turn.token_ids[-1]) in made.tokens.eos_ids for turn in completion.turns()]
            assert [action.digest for action in completion.actions] == list(played.digests[1:])
            assert group.beginning == played.digests[0]


def test_conversation_whose_environment_failed_is_not_shared_and_observations_are_remembered() -> None:
    tokens = policy().tokens
    sample = Sample(
        np.array([2, 3, 4]),
        np.zeros(3, np.float32),
        FinishReason.STOP,
        (Segment(0, 3),),
        ((2, (7, 8)),),
    )
    prompt = Prompt(KNOWN["find"].ref(0), "abc>", None, {})
    failed = Scores((1.0,), (ScoringFault(FaultReason.RAISED, "on purpose"),), (None,))
    rollout = Rollout(prompt, (5, 6), (sample,), (b"> ab",), failed)
    assert not can_be_shared(rollout, tokens)
    assert can_be_shared(replace(rollout, conversed=None), tokens)
    memory = Rehearsal()
    memory.remember(rollout, [1.0])
    restored = Rehearsal.restored(memory.snapshot())
    assert restored.classes["find"][5, 6].observed == sample.observed
    assert restored.classes["find"][5, 6].tokens == 5


def test_row_has_observations_in_their_places() -> None:
    alignment: Any = None
    completion = TrainingCompletion(np.array([1, 2, 3]), alignment, 1.0, "self", observed=((1, (7, 8)), (2, (9,))))
    assert completion.row_ids.tolist() == [1, 7, 8, 2, 9, 3]
    assert completion.row_places.tolist() == [0, 3, 5]
    assert completion.row_length == 6


def test_tokens_of_an_action_are_credited_with_what_it_and_later_ones_earned() -> None:
    ids, heard = np.arange(3), ((2, (7, 8)),)
    samples = [Sample(ids, np.zeros(3, np.float32), FinishReason.STOP, (Segment(0, 3),), heard) for _ in range(2)]
    played = [Played(("e", "f"), (b"",) * 3, earned, goes_on=False) for earned in ((0.0, 0.5), (0.5, 0.0))]
    prompt = Prompt(KNOWN["find"].ref(0), "abc>", None, {})
    rollout = Rollout(prompt, (5, 6), tuple(samples), (b"", b""), Scores((0.5, 0.5), (None, None), tuple(played)))
    section = ObjectiveSection()
    group = own_training_group(rollout, [0.5, 0.5], section, AdvantageRule("turn"))
    late, early = (each.token_advantages for each in group.completions)
    assert late[0] == late[1] == early[0] == early[1] == 0  # all earned .5 from their first turn on
    assert late[2] == -early[2] > 0
    assert (
        group.informative and not own_training_group(rollout, [0.5, 0.5], section, AdvantageRule("group")).informative
    )
    halves = influenced([replace(group, influence=0.5)])[0].completions
    assert [each.token_advantages.tolist() for each in halves] == [(late / 2).tolist(), (early / 2).tolist()]
    completion = replace(group.completions[0], anew=(2,))
    assert [row.token_advantages.tolist() for _, row in completion.rows((5, 6))] == [[0, 0], [late[2]]]
    spans = RaggedSpans.of(group.completions)
    logps = torch.zeros(6, requires_grad=True)
    loss, _ = objective_loss(logps, torch.zeros(6), spans, section, BatchTotals(6, 2, 3))
    loss.backward()
    assert logps.grad is not None
    assert logps.grad.tolist() == pytest.approx([-float(a) / 6 for each in (late, early) for a in each])


def test_environment_that_fails_costs_its_episode_alone() -> None:
    own = policy()
    engine = TorchEngine(own, rows=16, seed=0)
    scorer = HereScorer(KNOWN, fails=lambda text: '"a' in text)
    task = KNOWN["find"]
    prompt = task.prompt(task.ref(1))
    ids = tuple(own.tokens.prompt_ids(prompt.text))
    turns = Conversing([prompt], own.tokens, scorer)
    (samples,) = engine.generate([GenerationRequest(ids, 16, 2, conversation_tokens=32)], Sampling(1.0, 3), turns)
    scores = turns.rollout(prompt, ids, samples).conversed
    assert scores is not None
    failed = [fault is not None for fault in scores.faults]
    assert any(failed)
    assert not all(failed)
