"""Own right answers, seen again: what keeps a skill that the newest rounds say nothing of.

    A = max(R − V_θ(class), 0)        self-imitation (Oh et al., arXiv 1806.05635), with the baseline of foreign groups

A round draws a few prompts of each class. Where answers are rarely right, most groups have no gradient, and what is
learnt of other classes moves the weights away from what was known. So right answers are remembered, the newest of each
prompt, and some are learnt from again in each round; classes take turns. A class that succeeds hardly weighs, one that
falls weighs more the further it fell, and the answers are still there when no new one is right.

Departures from the paper: V_θ is the class's running success (``allocation.success``), no critic; answers are drawn
evenly, not by A; they count as text, at weight 1.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from node.learner.allocation.success import SuccessTracker
from node.learner.generation.own_rollouts import Rollout
from node.learner.objective.alignment import text_alignment
from node.learner.objective.batch import SELF, TrainingCompletion, TrainingGroup

RIGHT: Final = 0.5  # a reward from here up is a right answer
MOST_ANSWERS: Final = 128  # of one class
MOST_TOKENS: Final = 1 << 16  # of all classes together, prompts included; at most 400 kB of a checkpoint

_Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RightAnswer:
    answer_ids: _Ids
    reward: float


@dataclass(slots=True)
class Rehearsal:
    """The remembered answers: by class, then by prompt, the oldest first. Where they are too many, the oldest of their
    class goes; where they are too long, the oldest of the class that takes most."""

    classes: dict[str, dict[_Ids, RightAnswer]] = field(default_factory=dict)

    def remember(self, rollout: Rollout, rewards: Sequence[float]) -> None:
        """Takes one own group: its best answer, if that is right."""
        best = max(range(len(rewards)), key=rewards.__getitem__)
        if rewards[best] < RIGHT:
            return
        known = self.classes.setdefault(rollout.prompt.ref.task, {})
        known.pop(rollout.prompt_ids, None)  # so that it is the newest
        known[rollout.prompt_ids] = RightAnswer(tuple(rollout.samples[best].token_ids.tolist()), float(rewards[best]))
        if len(known) > MOST_ANSWERS:
            known.pop(next(iter(known)))
        tokens = {name: sum(len(p) + len(a.answer_ids) for p, a in each.items()) for name, each in self.classes.items()}
        while sum(tokens.values()) > MOST_TOKENS:
            largest = max(tokens, key=tokens.__getitem__)
            oldest = next(iter(self.classes[largest]))
            tokens[largest] -= len(oldest) + len(self.classes[largest].pop(oldest).answer_ids)

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
                found.append((task, _group(prompt, answer, advantage, success.of(task))))
        return found

    def snapshot(self) -> dict[str, Any]:
        return {
            name: [[list(prompt), list(each.answer_ids), each.reward] for prompt, each in known.items()]
            for name, known in self.classes.items()
        }

    @classmethod
    def restored(cls, snapshot: Mapping[str, Any]) -> Rehearsal:
        return cls(
            {
                name: {
                    tuple(map(int, prompt)): RightAnswer(tuple(map(int, answer)), float(reward))
                    for prompt, answer, reward in known
                }
                for name, known in snapshot.items()
            }
        )


def _group(prompt: _Ids, answer: RightAnswer, advantage: float, success: float) -> TrainingGroup:
    tokens = len(answer.answer_ids)
    completion = TrainingCompletion(
        np.array(answer.answer_ids, dtype=np.int64),
        text_alignment(tokens),
        advantage,
        SELF,
        reward=answer.reward,
        success=success,
        as_text=True,
    )
    return TrainingGroup(prompt, (completion,), tokens, 1)
