"""Right answers of peers that are seen again: which are kept, of whom, how many steps, and that they teach."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from node.configuration import LearnerSection
from node.learner.allocation.success import ClassSuccess, SuccessTracker
from node.learner.answers import right_answers
from node.learner.answers.right_answers import (
    MOST_STEPS,
    SEEN_EVERY,
    Imitation,
    Lesson,
    Rehearsal,
    RightAnswer,
    as_text,
    steps_again,
)
from node.learner.influence.guard import Guard, InfluenceState
from node.learner.influence.shares import own_mass
from node.learner.influence.standing import Standings
from node.learner.objective.alignment import text_alignment
from node.learner.objective.batch import SELF, TrainingCompletion, TrainingGroup
from tests.node.learner.letter_node import LetterTask, MemorySwarm, Node, policy, right_group

BATCH = 16


def of_peer(peer: str, prompt: int, reward: float = 1.0, influence: float = 1.0) -> TrainingGroup:
    completions = [
        TrainingCompletion(np.array([7, value]), text_alignment(2), value, peer, reward=value)
        for value in (reward / 2, reward)
    ]
    return TrainingGroup((prompt,), tuple(completions), 4, 2, influence=influence)


def filled(**answers: int) -> Imitation:
    """Returns a memory with so many answers of each class, those of "first" from ann, the others from bob."""
    known = Imitation()
    for task, count in answers.items():
        for prompt in range(count):
            known.keep(task, (prompt,), RightAnswer((7,), 1.0, "ann" if task == "first" else "bob"))
    return known


def lessons(
    known: Imitation, own: Rehearsal | None = None, *, taught_by: Sequence[str] = ("ann", "bob"), **success: float
) -> list[list[Lesson]]:
    tracker = SuccessTracker({name: ClassSuccess(value) for name, value in success.items()})
    draws = random.Random(0)
    return known.lessons(own or Rehearsal(), list(success), tracker, lambda peer: peer in taught_by, BATCH, draws)


def test_the_best_answer_of_a_group_is_remembered_if_it_is_right_and_its_peer_may_teach() -> None:
    known = Imitation()
    known.remember("first", of_peer("ann", 1))
    known.remember("first", of_peer("ann", 2, reward=0.4))
    known.remember("first", of_peer("ann", 3, influence=0.0))
    known.remember("first", TrainingGroup((4,), (), 0, 0))
    assert known.classes == {"first": {(1,): RightAnswer((7, 1), 1.0, "ann")}}


def test_where_a_class_is_full_the_peer_with_most_answers_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(right_answers, "MOST_ANSWERS", 6)
    known = Imitation()
    for prompt, peer in enumerate(["bob", "bob", *["eve"] * 9]):
        known.remember("first", of_peer(peer, prompt))
    assert [each.peer for each in known.classes["first"].values()] == ["bob"] * 2 + ["eve"] * 4
    assert list(known.classes["first"])[-1] == (10,)


@pytest.mark.parametrize(
    ("remembered", "draw", "steps"),
    [(0, 0.99, 0), (SEEN_EVERY * BATCH, 0.99, 1), (SEEN_EVERY * BATCH // 2, 0.6, 1), (10**6, 0.99, MOST_STEPS)],
)
def test_each_answer_is_seen_again_every_few_rounds_in_bounded_steps(remembered: int, draw: float, steps: int) -> None:
    assert steps_again(remembered, BATCH, draw) == steps


def test_classes_take_even_turns_and_own_answers_stand_beside_those_of_peers() -> None:
    own = Rehearsal()
    for prompt in range(20):
        own.keep("first", (100 + prompt,), RightAnswer((8,), 1.0))
        own.keep("mine", (prompt,), RightAnswer((9,), 1.0))
    found = lessons(filled(first=20, again=200), own, first=0.2, again=0.0, mine=1.0)
    assert len(found) in (3, 4)  # 260 answers, of which one in five makes 3.25 steps
    for lesson in found:
        assert len(lesson) == BATCH
        assert max(Counter(task for task, _, _ in lesson).values()) == 6  # 16 among three
        assert all(group.completions[0].advantage == 1 and group.completions[0].as_text for _, _, group in lesson)
    drawn = {(task, peer) for lesson in found for task, peer, _ in lesson}
    assert drawn == {("first", "ann"), ("first", SELF), ("again", "bob"), ("mine", SELF)}


def test_nothing_is_seen_again_of_a_class_that_is_mastered_or_of_a_peer_that_is_not_proven() -> None:
    known = filled(first=100, again=100)
    assert {peer for lesson in lessons(known, first=0.95, again=0.0) for _, peer, _ in lesson} == {"bob"}
    assert {peer for lesson in lessons(known, taught_by=["ann"], first=0.0, again=0.0) for _, peer, _ in lesson} == {
        "ann"
    }
    own = Rehearsal()
    own.keep("first", (1,), RightAnswer((8,), 1.0))
    assert lessons(known, own, first=0.95, again=0.95) == []  # own answers alone are rehearsed elsewhere


def test_one_peer_does_no_more_in_a_step_than_own_groups_and_is_known_to_have_taught() -> None:
    guard = Guard(InfluenceState(standings=Standings(trusting=True)), completions=4, staleness=0, seed="test")
    own = [TrainingGroup((1,), (TrainingCompletion(np.ones(4, np.int64), text_alignment(4), 0.5, SELF),), 16, 4)]
    answers = [as_text((prompt,), RightAnswer((7,) * 4, 1.0, "ann"), 1.0) for prompt in range(32)]
    for _ in range(2):
        groups = guard.shaped_again(3, own, [("ann", each) for each in answers])
        assert sum(each.influence * each.mass for each in groups) == pytest.approx(own_mass(own))
    assert guard.state.shares[3] == {"ann": pytest.approx(2 * own_mass(own))}
    assert not Guard(InfluenceState(), completions=4, staleness=0, seed="test").may_teach_again("ann")


def test_what_is_remembered_of_peers_survives_a_checkpoint() -> None:
    known = filled(first=3, again=2)
    assert Imitation.restored(json.loads(json.dumps(known.snapshot()))) == known


def success_of(node: Node) -> float:
    return Node("ben", own_policy=node.policy, learner=LearnerSection(own_groups=16, learning_rate=1e-9)).round().reward


def test_a_skill_is_learnt_from_what_a_peer_once_sent_unless_a_number_of_groups_is_configured() -> None:
    """All rewards of these nodes are 0, so that nothing but what they remember of a peer can teach them."""
    reached = {}
    for foreign in ("auto", 8):
        section = LearnerSection(own_groups=8, completions=2, learning_rate=1e-2, foreign_groups=foreign)
        node = Node("ann", learner=section, fails=lambda text: True)
        known = node.learner.state.imitation
        for task in ("first", "again"):
            for seed in range(60):
                prompt = LetterTask(task).prompt(LetterTask(task).ref(seed))
                question = tuple(node.policy.tokens.prompt_ids(prompt.text))
                answer = (*node.policy.tokens.prompt_ids(str(prompt.answer)), node.policy.tokens.eos_id)
                known.keep(task, question, RightAnswer(answer, 1.0, "bob"))
        before = success_of(node)
        versions = [node.round().policy_version for _ in range(40)]
        reached[foreign] = success_of(node) - before
        assert (versions[-1] > 0) == (foreign == "auto")  # the engine gets what was learnt
    assert reached["auto"] > 0.3
    assert abs(reached[8]) < 0.1


@pytest.mark.parametrize("proven", [True, False])
def test_a_round_remembers_right_answers_of_proven_peers(tmp_path: Path, proven: bool) -> None:
    swarm = MemorySwarm(tmp_path, lambda: 1_000_000.0)
    own = policy()
    section = LearnerSection(own_groups=4, learning_rate=1e-4)
    node = Node("ann", swarm.member("ann"), own_policy=own, learner=section, trusting=proven)
    swarm.put("bob", right_group(own, seed=1))
    assert node.round().foreign_groups_used == 1
    known = node.learner.state.imitation.classes
    assert {task: [each.peer for each in of_class.values()] for task, of_class in known.items()} == (
        {"first": ["bob"]} if proven else {}
    )
