"""Whether the learner learns nothing, or its reward only falls, and why, decided from its rounds.

A question teaches only where its answers earn different rewards. Three rounds without a step mean that no question of
any task did, own or of peers. A reward only falls where each of the last ``FALL_WINDOWS`` windows of ``FALL_ROUNDS``
rounds is below the one before, as one order of 720 is by chance, and the whole fall is more than ``FALL_ERRORS`` times
its standard error. Rounds in which nothing was scored, or scoring failed, are told elsewhere and do not count.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from node.events import RoundDone
from node.printable import printable
from protocol.limits import NAME_BYTES

ROUNDS: Final = 3
WRONG: Final = 0.05  # the highest mean reward of answers that are called wrong: some tasks reward a wrong form so much
RIGHT: Final = 0.95  # the lowest of answers that are called right
TASKS_NAMED: Final = 5
FALL_WINDOWS: Final = 6
FALL_ROUNDS: Final = 10
FALL_ERRORS: Final = 3.0


class LearningWatch:
    """Remembers the newest rounds without a step, and the rewards of the newest windows."""

    def __init__(self) -> None:
        self._rounds: deque[RoundDone] = deque(maxlen=ROUNDS)
        self._window: list[float] = []  # that is not full yet
        self._windows: deque[list[float]] = deque(maxlen=FALL_WINDOWS)

    def saw(self, done: RoundDone) -> None:
        if done.reward_by_task and not done.scoring_failures:
            self._window.append(done.reward)
        if len(self._window) == FALL_ROUNDS:
            self._windows.append(self._window)
            self._window = []
        if done.tokens_trained or done.gradient_mass_by_task:
            self._rounds.clear()
        elif done.reward_by_task and not done.scoring_failures:
            self._rounds.append(done)

    @property
    def nothing_learnt(self) -> str | None:
        """Returns in words why nothing is learnt, and what to do; None while the learner learns."""
        return nothing_learnt(self._rounds) if len(self._rounds) == ROUNDS else None

    @property
    def reward_falls(self) -> str | None:
        """Returns in words that the reward only falls, and what to do; None while it does not."""
        return reward_falls(self._windows)


def reward_falls(windows: Sequence[Sequence[float]]) -> str | None:
    """Returns that the rewards of ``windows``, oldest first, only fall, and what to do; None where they do not, or may
    do so by chance, or are fewer than ``FALL_WINDOWS``."""
    means = [statistics.fmean(window) for window in windows]
    if len(windows) < FALL_WINDOWS or any(after >= before for before, after in pairwise(means)):
        return None
    variance = sum(statistics.variance(window) / len(window) for window in (windows[0], windows[-1]))
    if means[0] - means[-1] <= FALL_ERRORS * math.sqrt(variance):
        return None
    return (
        f"the mean reward only falls, from {means[0]:.3f} to {means[-1]:.3f} over the last "
        f"{FALL_WINDOWS * FALL_ROUNDS} rounds. To do: go on from the best checkpoint (`starling up --resume best`) "
        "with a lower learner.learning_rate; if it began when a peer came, `starling report` says what was learnt from "
        "whom; with an own reward, see what answers earn on the page"
    )


def nothing_learnt(rounds: Iterable[RoundDone]) -> str:
    """Returns why ``rounds``, which took no step, taught nothing, and what to do. No text of a question or an answer is
    part of it: those are for the owner's eyes alone."""
    rewards: dict[str, list[float]] = {}
    for done in rounds:
        for task, reward in done.reward_by_task.items():
            rewards.setdefault(task, []).append(reward)
    why, remedies = why_equal({task: sum(of_task) / len(of_task) for task, of_task in rewards.items()})
    return (
        f"no step was taken in the last {ROUNDS} rounds, because {why}: only answers that earn different rewards "
        f"teach. To do: {remedies}. `starling status` and the page show answers"
    )


def why_equal(means: Mapping[str, float]) -> tuple[str, str]:
    """Returns why questions of these tasks teach nothing, by the mean reward of their answers, which are equal to each
    question, and what to do; in words. ``means`` is not empty."""
    wrong = [task for task, mean in means.items() if mean <= WRONG]
    right = [task for task, mean in means.items() if mean >= RIGHT]
    other = [task for task in means if task not in wrong and task not in right]
    why, remedies = [], []
    if wrong:
        why.append(f"every answer to {_named(wrong)} was wrong")
        remedies.append(
            f"see what an answer earns with `starling tasks {printable(wrong[0], NAME_BYTES)} --score ANSWER`; take an "
            "easier task, easier parameters of its generator, or a reward with degrees (docs/tasks.md); check that the "
            "chat template fits the model (policy.chat); or find peers whose models can do it"
        )
    if right:
        why.append(f"every answer to {_named(right)} was right")
        remedies.append("take a harder task, or harder parameters of its generator")
    if other:
        why.append(f"all answers to one question of {_named(other)} earned the same")
        remedies.append("sample more answers to a question (learner.completions)")
    return ", and ".join(why), ". And ".join(remedies)


def _named(tasks: list[str]) -> str:
    named = ", ".join(printable(task, NAME_BYTES) for task in sorted(tasks)[:TASKS_NAMED])
    return named if len(tasks) <= TASKS_NAMED else f"{named} and {len(tasks) - TASKS_NAMED} other tasks"
