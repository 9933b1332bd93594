"""Right answers to learn from again: a bounded memory by class and prompt, own ones and those of peers alike.

Of each prompt the newest answer is kept. Where a class has too many, the oldest of the peer that has most of them
there goes, so that no peer pushes out the others'; where all are too long, the oldest of the class that takes most.

Own ones are learnt from again, so that a skill stays which the newest rounds do not practise:

    A = max(R − V_θ(class), 0)        self-imitation (Oh et al., arXiv 1806.05635), with the baseline of foreign groups

A class that succeeds hardly weighs, one that falls weighs more the further it fell, and the answers are still there
when no new one is right. Departures from the paper: V_θ is the class's running success (``allocation.success``), no
critic; answers are drawn evenly, not by A; they count as text, at weight 1.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import msgspec
import numpy as np

from node.learner.allocation.success import SuccessTracker
from node.learner.generation.own_rollouts import Rollout
from node.learner.objective.alignment import text_alignment
from node.learner.objective.batch import SELF, TrainingCompletion, TrainingGroup

RIGHT: Final = 0.5  # a reward from here up is a right answer
MOST_ANSWERS: Final = 256  # of one class
MOST_TOKENS: Final = 1 << 16  # of all classes together, prompts included; at most 400 kB of a checkpoint

PromptIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RightAnswer:
    answer_ids: tuple[int, ...]  # in the learner's own tokens
    reward: float
    peer: str = SELF  # whose it is


@dataclass(slots=True)
class RightAnswers:
    """The remembered answers: by class, then by prompt, the oldest first."""

    classes: dict[str, dict[PromptIds, RightAnswer]] = field(default_factory=dict)

    def keep(self, task: str, prompt: PromptIds, answer: RightAnswer) -> None:
        known = self.classes.setdefault(task, {})
        known.pop(prompt, None)  # so that it is the newest
        known[prompt] = answer
        if len(known) > MOST_ANSWERS:
            ((most, _),) = Counter(each.peer for each in known.values()).most_common(1)
            known.pop(next(prompt for prompt, each in known.items() if each.peer == most))
        tokens = {name: sum(len(p) + len(a.answer_ids) for p, a in each.items()) for name, each in self.classes.items()}
        while sum(tokens.values()) > MOST_TOKENS:
            largest = max(tokens, key=tokens.__getitem__)
            oldest = next(iter(self.classes[largest]))
            tokens[largest] -= len(oldest) + len(self.classes[largest].pop(oldest).answer_ids)

    def forget(self, peers: Collection[str]) -> None:
        """Drops the answers of ``peers``."""
        for known in self.classes.values():
            for prompt in [prompt for prompt, each in known.items() if each.peer in peers]:
                del known[prompt]

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
    )
    return TrainingGroup(prompt, (completion,), tokens, 1)


@dataclass(slots=True)
class Rehearsal(RightAnswers):
    """Our own right answers."""

    def remember(self, rollout: Rollout, rewards: Sequence[float]) -> None:
        """Takes one own group: its best answer, if that is right."""
        best = max(range(len(rewards)), key=rewards.__getitem__)
        if rewards[best] >= RIGHT:
            answer = RightAnswer(tuple(rollout.samples[best].token_ids.tolist()), float(rewards[best]))
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
