"""Own right answers that are seen again: which are kept, how they weigh, and that they bring a skill back."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pytest

from node.configuration import LearnerSection
from node.engines.engine import Sample, Segment
from node.learner.allocation.success import ClassSuccess, SuccessTracker
from node.learner.answers import right_answers
from node.learner.answers.right_answers import MOST_ANSWERS, Imitation, PromptIds, Rehearsal, RightAnswer
from node.learner.generation.own_rollouts import Rollout
from node.learner.objective.batch import SELF
from node.policy.policy import Policy
from protocol.rollouts import FinishReason
from tests.node.learner.letter_node import LetterTask, Node, policy


def rollout(task: str, prompt_ids: Sequence[int], answers: Sequence[Sequence[int]]) -> Rollout:
    known = LetterTask(task)
    samples = tuple(
        Sample(np.array(ids), np.full(len(ids), -1.0, np.float32), FinishReason.STOP, (Segment(1, len(ids)),))
        for ids in answers
    )
    return Rollout(known.prompt(known.ref(0)), tuple(prompt_ids), samples, tuple(b"" for _ in answers))


def success(**of_class: float) -> SuccessTracker:
    return SuccessTracker({name: ClassSuccess(value) for name, value in of_class.items()})


def drawn(remembered: Rehearsal, count: int, tracker: SuccessTracker, *tasks: str) -> list[tuple[str, float]]:
    groups = remembered.drawn(count, tasks, tracker, random.Random(0))
    assert all(c.peer == SELF and c.as_text for _, group in groups for c in group.completions)
    return [(task, group.completions[0].advantage) for task, group in groups]


def test_only_right_answers_are_remembered_and_of_each_prompt_the_newest() -> None:
    remembered = Rehearsal()
    remembered.remember(rollout("first", [1], [[7], [8]]), [0.0, 0.4])
    assert not remembered.classes
    remembered.remember(rollout("first", [1], [[7], [8]]), [0.0, 1.0])
    remembered.remember(rollout("first", [2], [[7], [8]]), [1.0, 0.0])
    remembered.remember(rollout("first", [1], [[9], [8]]), [1.0, 0.0])
    assert [(prompt, each.answer_ids) for prompt, each in remembered.classes["first"].items()] == [
        ((2,), (7,)),
        ((1,), (9,)),
    ]


def test_an_answer_weighs_more_the_further_its_class_fell_and_nothing_where_all_succeeds() -> None:
    remembered = Rehearsal()
    for task in ("first", "again", "gone"):
        remembered.remember(rollout(task, [1], [[7]]), [1.0])
    tracker = success(first=0.25, again=1.0, gone=0.5)
    assert drawn(remembered, 4, tracker, "first") == [("first", 0.75)] * 4
    assert drawn(remembered, 4, tracker, "again") == []
    by_class = [task for task, _ in drawn(remembered, 6, tracker, "first", "again")]
    assert by_class == ["first"] * 3  # classes take turns, and one no longer practised has none


def test_what_is_remembered_is_bounded_and_the_newest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = Rehearsal()
    for number in range(MOST_ANSWERS + 3):
        remembered.remember(rollout("first", [number], [[7]]), [1.0])
    assert list(remembered.classes["first"])[:: MOST_ANSWERS - 1] == [(3,), (MOST_ANSWERS + 2,)]
    monkeypatch.setattr(right_answers, "MOST_TOKENS", 200)
    remembered.remember(rollout("again", [1] * 20, [[7] * 20]), [1.0])
    assert len(remembered.classes["first"]) == (200 - 40) // 2  # the class that takes most gives way
    remembered.remember(rollout("again", [1], [[7] * 150]), [1.0])
    assert sum(len(p) + len(a.answer_ids) for each in remembered.classes.values() for p, a in each.items()) <= 200


def test_bound_on_tokens_holds_and_drops_no_more_than_it_must_whatever_was_forgotten_copied_or_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(right_answers, "MOST_TOKENS", 60)
    draws, remembered = random.Random(0), Imitation()
    dropped = 0
    for number in range(500):
        if number % 50 == 49:
            remembered.forget({"ann"})
            remembered = copy.deepcopy(remembered) if number % 100 == 99 else Imitation.restored(remembered.snapshot())
        before = [known | {} for known in remembered.classes.values()]
        task, prompt = draws.choice("abc"), (draws.randrange(20),) * draws.randint(1, 4)
        answer = RightAnswer((7,) * draws.randint(1, 9), 1.0, draws.choice(("ann", "bob")))
        replaced = remembered.classes.get(task, {}).get(prompt)
        remembered.keep(task, prompt, answer)
        assert tokens_of(remembered.classes.values()) <= 60
        assert task in remembered.classes and list(remembered.classes[task])[-1:] == [prompt]
        fell_out = sum(map(len, before)) + (replaced is None) - sum(map(len, remembered.classes.values()))
        dropped += fell_out
        if not fell_out:
            continue
        asked = tokens_of(before) + len(prompt) + answer.tokens
        asked -= len(prompt) + replaced.tokens if replaced is not None else 0
        assert asked > 60, "it had room"
        assert tokens_of(remembered.classes.values()) + 13 > 60, "one less would have done: none has more than 13"
    assert dropped > 100


def tokens_of(classes: Iterable[Mapping[PromptIds, RightAnswer]]) -> int:
    return sum(len(prompt) + answer.tokens for known in classes for prompt, answer in known.items())


def test_copy_of_what_is_remembered_keeps_what_it_had() -> None:
    remembered = Rehearsal()
    remembered.remember(rollout("first", [1], [[7]]), [1.0])
    before = copy.deepcopy(remembered)
    remembered.remember(rollout("first", [2], [[8]]), [1.0])
    remembered.remember(rollout("again", [3], [[9]]), [1.0])
    assert {task: list(known) for task, known in before.classes.items()} == {"first": [(1,)]}


def test_what_is_remembered_survives_a_checkpoint_as_it_was() -> None:
    remembered = Rehearsal()
    for number in range(5):
        remembered.remember(rollout("first", [number, 2], [[7, 1]]), [1.0])
    again = Rehearsal.restored(json.loads(json.dumps(remembered.snapshot())))
    assert again == remembered
    assert list(again.classes["first"]) == list(remembered.classes["first"])  # the order decides who goes first


def success_of(own: Policy) -> float:
    """Returns the mean reward of 128 completions; what is learnt from them is too little to be seen."""
    section = LearnerSection(own_groups=16, completions=8, learning_rate=1e-9)
    return Node("ben", own_policy=own, learner=section, rows=128).round().reward


def test_a_skill_comes_back_though_no_new_answer_is_right() -> None:
    """All rewards of this node are 0, so that nothing but what it remembers can teach it."""
    own = policy()
    before = success_of(own)
    section = LearnerSection(own_groups=8, completions=2, learning_rate=2e-2)
    node = Node("ann", own_policy=own, learner=section, fails=lambda text: True)
    for task in ("first", "again"):
        for seed in range(36):
            prompt = LetterTask(task).prompt(LetterTask(task).ref(seed))
            question, answer = own.tokens.prompt_ids(prompt.text), own.tokens.prompt_ids(str(prompt.answer))
            node.learner.state.rehearsal.remember(rollout(task, question, [[*answer, own.tokens.eos_id]]), [1.0])
    assert all(node.round().reward == 0 for _ in range(30))
    assert success_of(own) > before + 0.3


def test_a_round_remembers_what_was_right() -> None:
    node = Node("ann")
    rounds = [node.round() for _ in range(5)]
    assert max(done.reward for done in rounds) > 0
    assert node.learner.state.rehearsal.classes
