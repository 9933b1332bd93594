"""Free text of strangers, put into own words: what they found right is a hint for own rollouts, and those are learnt.

Where the text around an answer is free, whoever copies a right answer copies that text too, whatever it says. So no
token of it is trained on, and none is shown to the policy. Instead an own completion is sampled with the answer as a
remark before the question,

    y ~ π_θ(· | remark, question)        one completion; the remark is the task's own reference answer

and where y is right, it is learnt as an answer to the question without the remark, as a foreign completion of the peer
that had answered (rationalisation: STaR, arXiv 2203.14465). Departures from the paper: the question comes from a peer
that was right about it; the weight is that of foreign completions, min(ρ, C) raised to the floor, with
ρ = π_θ(y | question) / π_θ(y | remark, question); nothing is trained from the start again.

A hint is used once. It is worth its completion only to a policy that can read a remark: a class whose hints are seldom
answered rightly gets one a round. A task without reference answers has no hints: nothing is learnt from free text
there.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from node.learner.allocation.success import DECAY, SuccessTracker
from node.learner.answers.right_answers import LEAST_GAIN
from node.learner.generation.hint import Hint
from node.learner.generation.own_rollouts import Rollout
from node.learner.objective.alignment import token_alignment
from node.learner.objective.batch import TrainingCompletion, TrainingGroup

MOST_HINTS: Final = 64  # of one class
SELDOM: Final = 0.05  # of hints answered rightly, below which a class gets one a round
AT_FIRST: Final = 0.5  # assumed of a class whose hints were not tried


@dataclass(slots=True)
class Hints:
    """The hints at hand, by class and seed, the oldest first, and how often those of a class were answered rightly."""

    classes: dict[str, dict[int, Hint]] = field(default_factory=dict)
    answered: dict[str, float] = field(default_factory=dict)

    def keep(self, hint: Hint) -> None:
        known = self.classes.setdefault(hint.task, {})
        known.pop(hint.seed, None)  # so that it is the newest
        known[hint.seed] = hint
        if len(known) > MOST_HINTS:
            known.pop(next(iter(known)))

    def drawn(
        self, count: int, tasks: Sequence[str], success: SuccessTracker, draws: random.Random
    ) -> tuple[Hint, ...]:
        """Returns at most ``count`` hints for a round, and forgets them: classes in turn, in each the newest first."""
        wanting = [task for task in tasks if self.classes.get(task) and success.of(task) <= 1 - LEAST_GAIN]
        order = draws.sample(wanting, len(wanting))
        found: list[Hint] = []
        while order and len(found) < count:
            task = order.pop(0)
            _, hint = self.classes[task].popitem()
            found.append(hint)
            if self.classes[task] and self.are_of_use(task):
                order.append(task)
        return tuple(found)

    def tried(self, hints: Iterable[tuple[Hint, bool]]) -> None:
        """Takes which of a round's hints were answered rightly."""
        for hint, right in hints:
            before = self.answered.get(hint.task, AT_FIRST)
            self.answered[hint.task] = DECAY * before + (1 - DECAY) * right

    def are_of_use(self, task: str) -> bool:
        """Whether those of a class are answered rightly often enough, as far as they were tried."""
        return self.answered.get(task, AT_FIRST) >= SELDOM

    def forget(self, peers: Iterable[str]) -> None:
        """Drops the hints of ``peers``."""
        gone = set(peers)
        for known in self.classes.values():
            for seed in [seed for seed, hint in known.items() if hint.peer in gone]:
                del known[seed]


def in_own_words(rollout: Rollout, reward: float, advantage: float, peer: str) -> TrainingGroup:
    """Returns a right own completion, sampled with a remark, as an answer of ``peer`` to the question without it.

    ``rollout.prompt_ids`` are those of the question; the behaviour policy is what sampled: the policy with the remark.
    """
    (sample,) = rollout.samples
    completion = TrainingCompletion(sample.token_ids, token_alignment(sample.logps), advantage, peer, reward=reward)
    return TrainingGroup(rollout.prompt_ids, (completion,), rollout.tokens, 1)
