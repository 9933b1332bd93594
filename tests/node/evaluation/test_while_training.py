"""Evaluation between rounds: it changes nothing of the run, and the checkpoint of the best weights is kept."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from node.checkpoints import checkpoints
from node.checkpoints.best import best_checkpoint
from node.checkpoints.checkpoints import read, read_newest
from node.configuration import Config, EvaluationSection, LearnerSection, TasksSection
from node.evaluation.evaluation import mean_rewards
from node.evaluation.held_out import HeldOutReward
from node.evaluation.while_training import EvaluationWhileTraining
from node.events import (
    BaselineMeasured,
    CheckpointSaved,
    Evaluated,
    Event,
    PhaseBegan,
    RoundDone,
    decode_event,
    encode_event,
)
from node.learner.assembly.loading import assembled
from node.tasks.registry import load_tasks
from node.tasks.split import Part, held_out_prompts
from tests.node.learner.letter_node import HereScorer, LetterTask, Node, policy

OFTEN = EvaluationSection(every_rounds=3, prompts=6)


def evaluations(node: Node) -> list[Evaluated]:
    return [event for event in node.events if isinstance(event, Evaluated)]


def rewarded(node: Node, monkeypatch: pytest.MonkeyPatch, rewards: dict[int, float]) -> None:
    """Has the evaluation after each round find what the test says."""

    def measure(self: EvaluationWhileTraining, round_number: int) -> HeldOutReward:
        return HeldOutReward(round_number, 6, {"first": 0.5}, rewards[round_number])

    monkeypatch.setattr(EvaluationWhileTraining, "measure", measure)


def disk_is_done(node: Node) -> None:
    """Waits until what was asked of the disk is written: a checkpoint that is due is left out beside another one."""
    node.checkpoints._thread.submit(lambda: None).result()


def test_run_with_evaluations_is_the_run_without_them_to_the_bit() -> None:
    plain, evaluated = Node("ann"), Node("ann", evaluation=OFTEN)
    done = [[(r.reward, r.loss, r.tokens_generated) for r in (n.round() for _ in range(7))] for n in (plain, evaluated)]
    assert done[0] == done[1]
    ours, theirs = plain.policy.trainable(), evaluated.policy.trainable()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert [event.round for event in evaluations(evaluated)] == [3, 6]
    assert not evaluations(plain)


def test_evaluation_measures_the_weights_of_its_round_on_the_test_set_of_each_task() -> None:
    node = Node("ann", evaluation=OFTEN)
    for _ in range(3):
        node.round()
    (event,) = evaluations(node)
    again = node.learner.measuring.evaluation
    assert again is not None
    measured = again.measure(3)  # greedy: the same each time
    assert measured is not None
    assert (event.reward_by_task, event.validation) == (measured.reward_by_task, measured.validation)
    assert event.reward_by_task.keys() == {"first", "again"}
    assert event.reward == pytest.approx(sum(event.reward_by_task.values()) / 2)
    assert (event.prompts, event.best_round, event.best_reward) == (6, 3, event.reward)
    assert event.policy_version == node.learner.state.policy_version
    kinds = [type(each) for each in node.events]
    assert kinds.index(PhaseBegan) == kinds.index(Evaluated) - 1
    assert kinds.index(RoundDone) < kinds.index(Evaluated)
    assert decode_event(encode_event(event)) == event


def test_a_run_begins_with_what_the_weights_could_before_it_and_a_second_start_does_not(tmp_path: Path) -> None:
    first = Node("ann", evaluation=OFTEN, folder=tmp_path, rounds=1)
    first.learner.run(lambda: None)
    (measured,) = [event for event in first.events if isinstance(event, BaselineMeasured)]
    assert first.events.index(measured) < min(n for n, each in enumerate(first.events) if isinstance(each, RoundDone))
    assert measured.prompts == 6 and measured.reward_by_task.keys() == {"first", "again"}
    assert all(0.0 <= reward <= 1.0 for reward in measured.reward_by_task.values())
    (greedy,) = evaluations(first)  # comparable with every later evaluation
    assert greedy.round == greedy.best_round == 0
    assert first.events.index(greedy) < min(n for n, each in enumerate(first.events) if isinstance(each, RoundDone))
    second = Node("ann", evaluation=OFTEN, folder=tmp_path, rounds=1)
    second.learner.run(lambda: None)
    assert not [event for event in second.events if isinstance(event, BaselineMeasured | Evaluated)]


def test_best_weights_are_saved_at_once_and_kept_while_worse_ones_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node("ann", evaluation=EvaluationSection(every_rounds=1), folder=tmp_path, rounds=9)
    rewarded(node, monkeypatch, {0: 0.9, 1: 0.2, 2: 0.1, 3: 0.6, 4: 0.6, 5: 0.1, 6: 0.2, 7: 0.3, 8: 0.5, 9: 0.4})
    node.learner.run(lambda: disk_is_done(node))
    assert [event.best_round for event in evaluations(node)] == [0, 1, 1, 3, 3, 3, 3, 3, 3, 3]
    best = best_checkpoint(tmp_path)
    assert best is not None
    assert best.measured.round == read(best.path).round == 3  # odd: no checkpoint was due
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-000003", "round-000008", "round-000009"]


def test_restarted_learner_knows_what_was_best_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = EvaluationSection(every_rounds=1)
    first = Node("ann", evaluation=every, folder=tmp_path, rounds=2)
    rewarded(first, monkeypatch, {0: 0.1, 1: 0.7, 2: 0.1, 3: 0.5, 4: 0.8})
    first.learner.run(lambda: None)
    second = Node("ann", evaluation=every, folder=tmp_path, rounds=2)
    assert second.learner.state.evaluation == HeldOutReward(2, 6, {"first": 0.5}, 0.1)
    second.learner.run(lambda: None)
    assert [event.best_round for event in evaluations(second)] == [1, 4]
    newest = read_newest(tmp_path).snapshot
    assert newest is not None
    assert newest.round == 4


def test_best_that_could_not_be_written_is_not_taken_for_the_best(tmp_path: Path, monkeypatch: Any) -> None:
    node = Node("ann", evaluation=EvaluationSection(every_rounds=1), folder=tmp_path, rounds=5)
    rewarded(node, monkeypatch, {1: 0.3, 2: 0.9, 3: 0.5, 4: 0.1, 5: 0.2})
    really = save_file

    def full_in_round_2(tensors: Any, path: Path) -> None:
        if node.learner.state.round == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        really(tensors, path)

    monkeypatch.setattr(checkpoints, "save_file", full_in_round_2)
    for _ in range(2):
        node.round()
        disk_is_done(node)
    node.round()  # reports it at the latest
    node.learner.run(lambda: "asked")
    assert node.faults() == ["checkpoint"]
    best = best_checkpoint(tmp_path)
    assert best is not None
    assert best.measured.round == 3
    assert {event.round for event in node.events if isinstance(event, CheckpointSaved)} == {1, 3}


def test_learner_that_generates_ahead_measures_its_newest_weights_not_those_that_its_engine_holds(
    tmp_path: Path,
) -> None:
    config = Config(
        name="ann",
        tasks=TasksSection(names=("spell_backward",)),
        learner=LearnerSection(own_groups=2, completions=4, max_staleness=1, foreign_groups=0, learning_rate=0.5),
        evaluation=EvaluationSection(every_rounds=1, prompts=8),
    )
    known = load_tasks(config.tasks)
    scorer, events = HereScorer(known), list[Event]()
    with assembled(tmp_path, config, scorer, events.append, 0.0) as learner:
        generating = learner.own._generation.engine  # type: ignore[attr-defined]
        while learner.state.policy_version == 0:
            learner.round()  # of a step this long nothing that the model knew remains
        learner.close()
        behind = mean_rewards(
            learner.policy.tokens, generating, scorer, known, held_out_prompts(known, Part.TEST, 8),
            samples=1, temperature=0.0, seed=0, context=128,
        )  # fmt: skip
    measured = [event for event in events if isinstance(event, Evaluated)][-1]
    assert generating.version < measured.policy_version
    assert measured.reward_by_task == {"spell_backward": 0.0}
    assert behind["spell_backward"] > 0.2


def test_prompt_that_fills_the_context_counts_as_not_answered() -> None:
    own = policy()
    known = {"first": LetterTask("first")}
    node = Node("ann", own_policy=own)
    engine = node.learner.own._generation.engine  # type: ignore[attr-defined]
    prompts = held_out_prompts(known, Part.TEST, 6)
    scorer = HereScorer(known)
    assert mean_rewards(own.tokens, engine, scorer, known, prompts, samples=1, temperature=0.0, seed=0, context=3) == {
        "first": 0.0
    }
