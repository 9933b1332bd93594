"""Right answers to learn from again: a bounded memory by class and prompt, own ones and those of peers alike.

Of each prompt the newest answer is kept. Where a class has too many, the oldest of the peer that has most of them
there goes, so that no peer pushes out the others'; where all are too long, the oldest of the class that takes most.

Own ones are learnt from again, so that a skill stays which the newest rounds do not practise:

    A = max(R − V_θ(class), 0)        self-imitation (Oh et al., arXiv 1806.05635), with the baseline of foreign groups

A class that succeeds hardly weighs, one that falls weighs more the further it fell, and the answers are still there
when no new one is right. Departures from the paper: V_θ is the class's running success (``allocation.success``), no
critic; answers are drawn evenly, not by A; they count as text, at weight 1.

Those of peers are seen again, which is what a foreign group is worth beyond the step that it came with:

    answers seen again    n = min(remembered / SEEN_EVERY, MOST_STEPS · B)       B: completions that a round generates
    steps                 n / B, each on B answers of all classes evenly, A = 1, IMITATION_RATE times as long

Each is seen again every ``SEEN_EVERY`` rounds: seldom while there are few, which would be learnt by heart, more often
the more there are. Own right answers are seen beside them as evenly. A class is worth it while our own success leaves
``LEAST_GAIN`` to gain. Only answers of peers that are proven are remembered, and seen again while they still are, under
the caps of ``influence.shares`` against the round's own groups in every step. So newcomers fill no memory and their
influence is that of one step a round; answers of peers that did harm are forgotten.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any, Final, Self

import msgspec
import numpy as np

from node.engines.engine import Observed
from node.learner.allocation.success import SuccessTracker
from node.learner.generation.own_rollouts import Rollout
from node.learner.objective.alignment import text_alignment
from node.learner.objective.batch import SELF, TrainingCompletion, TrainingGroup
from node.tasks.answers import RIGHT

MOST_ANSWERS: Final = 256  # of one class
MOST_TOKENS: Final = 1 << 16  # of all classes together, prompts included; at most 400 kB of a checkpoint
PromptIds = tuple[int, ...]
SEEN_EVERY: Final = 2  # rounds, on average
MOST_STEPS: Final = 4  # a round
IMITATION_RATE: Final = 2.0  # times the learning rate: a right answer is surer than an estimated advantage
LEAST_GAIN: Final = 0.1
Lesson = tuple[str, str, TrainingGroup]  # class, peer, one answer


@dataclass(frozen=True, slots=True)
class RightAnswer:
    answer_ids: tuple[int, ...]  # in the learner's own tokens
    reward: float
    peer: str = SELF  # whose it is
    observed: Observed = ()  # of a conversation: ``answer_ids`` are its actions
    anew: tuple[int, ...] = ()  # as ``TrainingCompletion`` has it

    @property
    def tokens(self) -> int:
        return len(self.answer_ids) + sum(len(ids) for _, ids in self.observed)


def _tokens_of(prompt: PromptIds, answer: RightAnswer) -> int:
    return len(prompt) + answer.tokens


@dataclass(slots=True)
class RightAnswers:
    """The remembered answers: by class, then by prompt, the oldest first."""

    classes: dict[str, dict[PromptIds, RightAnswer]] = field(default_factory=dict)
    _tokens: dict[str, int] = field(init=False, repr=False)  # of each class, prompts included

    def __post_init__(self) -> None:
        self._tokens = {task: sum(starmap(_tokens_of, known.items())) for task, known in self.classes.items()}

    def __deepcopy__(self, memo: object) -> Self:
        own = copy.copy(self)  # an answer and its prompt are never written to
        own.classes, own._tokens = {task: dict(known) for task, known in self.classes.items()}, dict(self._tokens)
        return own

    def keep(self, task: str, prompt: PromptIds, answer: RightAnswer) -> None:
        known = self.classes.setdefault(task, {})
        if prompt in known:
            self._drop(task, prompt)  # so that it is the newest
        known[prompt] = answer
        self._tokens[task] = self._tokens.get(task, 0) + _tokens_of(prompt, answer)
        if len(known) > MOST_ANSWERS:
            ((most, _),) = Counter(each.peer for each in known.values()).most_common(1)
            self._drop(task, next(prompt for prompt, each in known.items() if each.peer == most))
        while sum(self._tokens.values()) > MOST_TOKENS:
            largest = max(self._tokens, key=self._tokens.__getitem__)
            self._drop(largest, next(iter(self.classes[largest])))

    def forget(self, peers: Collection[str]) -> None:
        """Drops the answers of ``peers``."""
        for task, known in self.classes.items():
            for prompt in [prompt for prompt, each in known.items() if each.peer in peers]:
                self._drop(task, prompt)

    def _drop(self, task: str, prompt: PromptIds) -> None:
        self._tokens[task] -= _tokens_of(prompt, self.classes[task].pop(prompt))

    def snapshot(self) -> dict[str, Any]:
        answers = {name: list(known.items()) for name, known in self.classes.items()}
        snapshot: dict[str, Any] = msgspec.to_builtins(answers)
        return snapshot

    @classmethod
    def restored(cls, snapshot: Mapping[str, Any]) -> Self:
        """Returns what ``snapshot`` returned."""
        answers = msgspec.convert(snapshot, dict[str, list[tuple[PromptIds, RightAnswer]]])
        return cls({name: dict(known) for name, known in answers.items()})


def as_text(prompt: PromptIds, answer: RightAnswer, advantage: float) -> TrainingGroup:
    """Returns one answer as a group of its own, at weight 1."""
    tokens = len(answer.answer_ids)
    completion = TrainingCompletion(
        np.array(answer.answer_ids, dtype=np.int64),
        text_alignment(tokens),
        advantage,
        answer.peer,
        reward=answer.reward,
        as_text=True,
        observed=answer.observed,
        anew=answer.anew,
    )
    return TrainingGroup(prompt, (completion,), tokens, 1)


@dataclass(slots=True)
class Rehearsal(RightAnswers):
    """Our own right answers."""

    def remember(self, rollout: Rollout, rewards: Sequence[float]) -> None:
        """Takes one own group: its best answer, if that is right."""
        best = max(range(len(rewards)), key=rewards.__getitem__)
        if rewards[best] >= RIGHT:
            sample = rollout.samples[best]
            ids, heard = tuple(sample.token_ids.tolist()), (sample.observed, sample.anew)
            answer = RightAnswer(ids, float(rewards[best]), SELF, *heard)
            self.keep(rollout.prompt.ref.task, rollout.prompt_ids, answer)

    def drawn(
        self, count: int, tasks: Sequence[str], success: SuccessTracker, draws: random.Random
    ) -> list[tuple[str, TrainingGroup]]:
        """Returns at most ``count`` answers to learn from again, each with its class; ``tasks`` are those practised."""
        classes = [task for task in tasks if self.classes.get(task)]
        draws.shuffle(classes)
        found = []
        for number in range(count if classes else 0):
            task = classes[number % len(classes)]
            prompt = draws.choice(list(self.classes[task]))
            answer = self.classes[task][prompt]
            advantage = answer.reward - success.of(task)
            if advantage > 0:
                found.append((task, as_text(prompt, answer, advantage)))
        return found


def steps_again(remembered: int, whole_batch: int, draw: float) -> int:
    """Returns how many steps on ``whole_batch`` answers a round takes, where so many are remembered; ``draw``, 0 to 1,
    decides what is left over."""
    return int(min(remembered / (SEEN_EVERY * whole_batch), float(MOST_STEPS)) + draw)


@dataclass(slots=True)
class Imitation(RightAnswers):
    """The right answers of peers."""

    def remember(self, task: str, group: TrainingGroup) -> None:
        """Takes a verified group that was learnt from: its best answer, if that is right."""
        best = max(group.completions, key=lambda each: each.reward, default=None)
        if best is not None and best.reward >= RIGHT and group.influence > 0:
            answer = RightAnswer(tuple(best.token_ids.tolist()), best.reward, best.peer, best.observed, best.anew)
            self.keep(task, group.prompt_ids, answer)

    def lessons(
        self,
        own: Rehearsal,
        tasks: Sequence[str],
        success: SuccessTracker,
        teaches: Callable[[str], bool],
        whole_batch: int,
        draws: random.Random,
    ) -> list[list[Lesson]]:
        """Returns what to learn from again, one list a step; ``teaches`` says from which peers."""
        known: dict[str, list[tuple[PromptIds, RightAnswer]]] = {task: [] for task in tasks}
        for task in tasks:
            if success.of(task) <= 1 - LEAST_GAIN:
                known[task] += [each for each in self.classes.get(task, {}).items() if teaches(each[1].peer)]
        if not any(known.values()):
            return []
        for task in tasks:
            known[task] += own.classes.get(task, {}).items()
        classes = [task for task in tasks if known[task]]
        steps = steps_again(sum(map(len, known.values())), whole_batch, draws.random())
        found: list[list[Lesson]] = []
        for _ in range(steps):
            order = draws.sample(classes, len(classes))
            lesson: list[Lesson] = []
            for number in range(whole_batch):
                task = order[number % len(order)]
                prompt, answer = draws.choice(known[task])
                lesson.append((task, answer.peer, as_text(prompt, answer, 1.0)))
            found.append(lesson)
        return found


def of_others(lessons: Sequence[Lesson]) -> list[tuple[str, TrainingGroup]]:
    return [(peer, group) for _, peer, group in lessons if peer != SELF]
