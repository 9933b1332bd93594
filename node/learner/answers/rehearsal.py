"""Own right answers, learnt from again, so that a skill stays which the newest rounds do not practise.

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
from collections.abc import Sequence
from dataclasses import dataclass

from node.learner.allocation.success import SuccessTracker
from node.learner.answers.right_answers import RIGHT, RightAnswer, RightAnswers, as_text
from node.learner.generation.own_rollouts import Rollout
from node.learner.objective.batch import TrainingGroup


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
