"""Free text of strangers: nothing of it is trained on; what they found right is answered in own words, and learnt."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from node.configuration import LearnerSection, ObjectiveSection, ResearchSection
from node.engines.engine import Ended, Engine, Enough, GenerationProgress, GenerationRequest, Sampling, Turns
from node.engines.torch import TorchEngine
from node.events import RoundDone
from node.learner.allocation.success import ClassSuccess, SuccessTracker
from node.learner.answers.hints import MOST_HINTS, Hints
from node.learner.generation.hint import REMARK, Hint
from node.learner.objective.batch import TrainingGroup
from node.tasks.split import Part, part_of
from protocol.rollouts import Group
from tests.node.learner.letter_node import LetterTask, MemorySwarm, Node, right_group

PAYLOAD = "fa"  # stands behind the right letter
REMARK_IDS = 22  # tokens of a remark and a question, at least


class WatchedEngine:
    """The node's engine, and what it was asked for."""

    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine
        self.asked: list[GenerationRequest] = []  # in the last round
        self.sampled: set[tuple[int, ...]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def advance(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        enough: Enough | None = None,
        ended: Ended | None = None,
        turns: Turns | None = None,
    ) -> list[GenerationProgress]:
        self.asked = list(requests)
        reached = self._engine.advance(requests, sampling, enough, ended, turns)
        self.sampled |= {tuple(sample.token_ids.tolist()) for each in reached for sample in each.samples}
        return reached


class Taught:
    """A node beside a stranger whose right answers have ``PAYLOAD`` in them, and everything that it was trained on."""

    def __init__(self, swarm: MemorySwarm, **settings: Any) -> None:
        self.swarm = swarm
        self.engine: WatchedEngine | None = None
        learner = LearnerSection(own_groups=4, completions=4, foreign_groups="auto", learning_rate=1e-2)
        self.node = Node("ann", swarm.member("ann"), learner=learner, around=self._watched, **settings)
        self.trained: list[TrainingGroup] = []
        steps = self.node.learner.learning.steps
        take = steps.take

        def noted(groups: Sequence[TrainingGroup], *rest: Any, **more: Any) -> Any:
            self.trained += groups
            return take(groups, *rest, **more)

        object.__setattr__(steps, "take", noted)
        self.rounds = 0

    def _watched(self, engine: TorchEngine) -> Engine:
        self.engine = WatchedEngine(engine)
        return self.engine

    def seeds(self) -> list[int]:
        """Returns four questions that teach, others than before."""
        task = LetterTask("first")
        teaching = [seed for seed in range(36) if part_of(task.prompt(task.ref(seed))) is Part.TRAINING]
        return [teaching[(4 * self.rounds + n) % len(teaching)] for n in range(4)]

    def group(self, seed: int) -> Group:
        letter = str(LetterTask("first").prompt(LetterTask("first").ref(seed)).answer)
        return replace(right_group(self.node.policy, seed, [letter + PAYLOAD] * 4), policy_version=self.rounds)

    def round(self) -> RoundDone:
        for seed in self.seeds():
            self.swarm.put("eve", self.group(seed))
        self.rounds += 1
        return self.node.round()

    def copied(self) -> int:
        """Returns how many of the completions that were trained on the policy did not sample itself."""
        assert self.engine is not None
        trained = [tuple(c.token_ids.tolist()) for group in self.trained for c in group.completions]
        return sum(ids not in self.engine.sampled for ids in trained)

    def hinted(self) -> list[GenerationRequest]:
        assert self.engine is not None
        return [each for each in self.engine.asked if len(each.prompt_ids) >= REMARK_IDS]


def test_a_strangers_free_text_is_never_trained_on_and_its_question_is_asked_with_a_remark(swarm: MemorySwarm) -> None:
    taught = Taught(swarm)
    before = taught.seeds()
    first = taught.round()
    assert first.foreign_groups_used == 4 and first.foreign_completions_total == 0
    assert not taught.hinted()
    own_completions = sum(first.completions_by_task.values())
    second = taught.round()
    asked = taught.hinted()
    assert len(asked) == 4 and {each.completions for each in asked} == {1}
    tokens = taught.node.policy.tokens
    task = LetterTask("first")
    prompts = [task.prompt(task.ref(seed)) for seed in before]
    remarks = {tuple(tokens.prompt_ids(REMARK.format(answer=p.answer) + p.text)) for p in prompts}
    assert {tuple(each.prompt_ids) for each in asked} == remarks
    assert sum(second.completions_by_task.values()) == own_completions  # hinted answers say nothing of own success
    for _ in range(6):
        taught.round()
    assert taught.copied() == 0
    assert taught.swarm.verdicts("ann").keys() == {"used"}


def test_what_is_answered_rightly_with_a_hint_is_learnt_without_it_as_an_answer_of_the_peer(swarm: MemorySwarm) -> None:
    taught = Taught(swarm)
    masses: dict[str, float] = {}
    for _ in range(12):
        for by_peer in taught.round().gradient_mass_by_task.values():
            for peer, mass in by_peer.items():
                masses[peer] = masses.get(peer, 0.0) + mass
    assert masses["eve"] > 0
    learnt = [group for group in taught.trained if any(c.peer == "eve" for c in group.completions)]
    assert learnt and all(len(group.prompt_ids) == 3 for group in learnt)  # the question alone
    assert all(c.advantage > 0 and c.reward == 1.0 for group in learnt for c in group.completions)


def test_a_member_of_ones_own_cluster_is_copied_once_the_policy_has_shown_that_it_cannot_read_a_remark(
    swarm: MemorySwarm,
) -> None:
    taught = Taught(swarm, trusting=True)
    taught.round()
    assert taught.copied() == 0
    taught.node.learner.state.hints.answered["first"] = 0.0
    taught.round()
    assert taught.copied() > 0


def test_free_text_is_copied_where_its_owner_says_so(swarm: MemorySwarm) -> None:
    copying = ObjectiveSection(research=ResearchSection(free_text="copy"))
    taught = Taught(swarm, objective=copying, trusting=False)
    taught.round()
    assert taught.copied() > 0


def test_the_tasks_own_text_is_copied_at_once(swarm: MemorySwarm) -> None:
    taught = Taught(swarm)
    swarm.put("bob", right_group(taught.node.policy))
    done = taught.node.round()
    assert done.foreign_groups_used == 1 and done.foreign_completions_total == 4
    assert not taught.node.learner.state.hints.classes


def hint(seed: int, task: str = "first", peer: str = "eve") -> Hint:
    return Hint(task, seed, "a", peer)


def tracker(**of_class: float) -> SuccessTracker:
    return SuccessTracker({name: ClassSuccess(value) for name, value in of_class.items()})


def drawn(
    hints: Hints, count: int, success: Mapping[str, float] = {"first": 0.0, "again": 0.0}
) -> list[tuple[str, int]]:
    found = hints.drawn(count, ["first", "again"], tracker(**success), random.Random(0))
    return [(each.task, each.seed) for each in found]


def test_hints_are_used_once_the_newest_first_and_classes_take_turns() -> None:
    hints = Hints()
    for seed in (1, 2, 1):
        hints.keep(hint(seed))
    hints.keep(hint(7, "again"))
    hints.keep(hint(8, "gone"))  # no longer practised
    assert sorted(drawn(hints, 2)) == [("again", 7), ("first", 1)]
    assert drawn(hints, 2) == [("first", 2)]
    assert drawn(hints, 2) == []


def test_a_class_that_succeeds_is_given_no_hints() -> None:
    hints = Hints()
    hints.keep(hint(1))
    assert drawn(hints, 1, {"first": 0.95}) == []
    assert drawn(hints, 1, {"first": 0.85}) == [("first", 1)]


def test_a_class_whose_hints_help_seldom_is_given_one_a_round() -> None:
    hints = Hints()
    for seed in range(8):
        hints.keep(hint(seed))
    hints.tried((hint(0), False) for _ in range(100))
    assert not hints.are_of_use("first") and hints.are_of_use("again")
    assert len(drawn(hints, 4)) == 1
    hints.tried((hint(0), True) for _ in range(5))
    assert len(drawn(hints, 4)) == 4


def test_hints_are_bounded_forgotten_with_their_peer_and_part_of_checkpoints() -> None:
    hints = Hints()
    for seed in range(MOST_HINTS + 2):
        hints.keep(hint(seed, peer="eve" if seed % 2 else "bob"))
    assert list(hints.classes["first"]) == list(range(2, MOST_HINTS + 2))
    hints.tried([(hint(0), False)])
    saved = json.loads(json.dumps(msgspec.to_builtins(hints, str_keys=True)))
    restored = msgspec.convert(saved, Hints, str_keys=True)
    assert restored == hints and list(restored.classes["first"]) == list(hints.classes["first"])
    hints.forget(["eve"])
    assert {each.peer for each in hints.classes["first"].values()} == {"bob"}
