"""Right answers of peers, seen again: what a foreign group is worth beyond the step that it came with.

    answers seen again    n = min(remembered / SEEN_EVERY, MOST_STEPS · B)       B: completions that a round generates
    steps                 n / B, each on B answers of all classes evenly, A = 1, IMITATION_RATE times as long

Verified right answers are remembered, and each is seen again every ``SEEN_EVERY`` rounds: seldom while there are few,
which would be learnt by heart, more often the more there are. Own right answers are seen beside them as evenly.

A class is worth it while our own success leaves ``LEAST_GAIN`` to gain. Only answers of peers that are proven are
remembered, and seen again while they still are, under the caps of ``influence.shares`` against the round's own groups
in every step. So newcomers fill no memory and their influence is that of one step a round; answers of peers that did
harm are forgotten.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from node.learner.allocation.success import SuccessTracker
from node.learner.answers.right_answers import RIGHT, PromptIds, Rehearsal, RightAnswer, RightAnswers, as_text
from node.learner.objective.batch import SELF, TrainingGroup

SEEN_EVERY: Final = 5  # rounds, on average
MOST_STEPS: Final = 4  # a round
IMITATION_RATE: Final = 2.0  # times the learning rate: a right answer is surer than an estimated advantage
LEAST_GAIN: Final = 0.1

Lesson = tuple[str, str, TrainingGroup]  # class, peer, one answer


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
            answer = RightAnswer(tuple(best.token_ids.tolist()), best.reward, best.peer)
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
