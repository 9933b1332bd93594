"""Tasks on which success has fallen by more than noise from their best, since when, and what went with it.

Success of practice is smoothed: own completions, exponentially weighted by the round.

    M = Σ_k λ^k n_k R_k / Σ_k λ^k n_k       R_k: mean reward of n_k own completions, k rounds of this task ago; λ = .9
    v ← λ v + (1 − λ)(R − M)²,  se² = v · Σ w² / (Σ w)²,  w = λ^k n_k

Unlike the learner's own V_θ (``node.learner.allocation.success``) M starts from no prior: after one round it is what
that round showed. Its error se comes from the scatter of the rounds around it. Once a round of the task:

    held        the least M of the last HOLD_ROUNDS rounds of the task       best: the greatest level that was ever held
    reached     the greatest M of the last HOLD_ROUNDS rounds of the task
    lost        best − reached > max(LEAST_FALL, SIGMAS · √(se_best² + se²))
    until       best − reached is at most half of that bound; then the loss is over
    since       the last round at which best − M was at most half of the bound

So a level counts once it was held for a while, and is lost once it was not reached for as long: success that swings
from round to round is no loss.

Held-out prompts are judged alike, with se² = p(1 − p)/n of n prompts. Of a task that is no longer practised only they
can show a loss. What went with it (peers that left, groups of others that no longer came, a task that is
hardly drawn) is what the record shows for the time of the fall; it is no proof of a cause. Pure but for ``LossWatch``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from node.api.gains_words import loss_sentence
from node.api.types import Loss
from node.events import Averaged, Evaluated, LearnerReady, PeersChanged, RoundDone
from node.printable import printable
from node.quantities import counted
from protocol.limits import NAME_BYTES

LEAST_FALL: Final = 0.1  # of reward: less is not worth a sentence
SIGMAS: Final = 3.0
HOLD_ROUNDS: Final = 20  # of a task
MAX_TASKS: Final = 64
MAX_LOSSES: Final = 16  # listed in an answer
MAX_CAUSES: Final = 4  # in words, of one loss
MAX_EVENTS: Final = 64  # kept of peers that left, averagings and starts
SHARE_ROUNDS: Final = 20  # over which the share of a task in what is drawn is taken
HARDLY_DRAWN: Final = 0.34  # of the former share
BEFORE_ROUNDS: Final = 10  # before the fall: what happened then may belong to it
DECAY: Final = 0.9
FIRST_VARIANCE: Final = 0.05  # of a round's mean around the smoothed one, before any scatter was seen
LEAST_VARIANCE: Final = 0.0025  # a task that never failed may fail once


@dataclass(frozen=True, slots=True)
class Smoothed:
    """Success on one task after some rounds of it."""

    total: float = 0.0  # Σ λ^k n_k R_k
    weight: float = 0.0  # Σ λ^k n_k
    squares: float = 0.0  # Σ (λ^k n_k)²
    variance: float = FIRST_VARIANCE
    rounds: int = 0  # of this task

    @property
    def mean(self) -> float:
        return self.total / self.weight if self.weight > 0 else 0.0

    @property
    def squared_error(self) -> float:
        """The variance of ``mean``, from the scatter of rounds."""
        if self.weight <= 0:
            return max(self.variance, LEAST_VARIANCE)
        return max(self.variance, LEAST_VARIANCE) * self.squares / self.weight**2

    @classmethod
    def measured(cls, reward: float, prompts: int) -> Smoothed:
        """Success that one answer to each of ``prompts`` showed: it counts as much as a round with as many answers."""
        squares = squared_error_of(reward, prompts) / FIRST_VARIANCE * prompts**2
        return cls(prompts * reward, prompts, squares, FIRST_VARIANCE, 1)

    def after(self, reward: float, completions: int) -> Smoothed:
        """Returns the success after one more round of the task. A reward that is not finite changes nothing."""
        if not math.isfinite(reward):
            return self
        count = max(1, completions)
        variance = self.variance
        if self.rounds:
            variance = DECAY * variance + (1 - DECAY) * (reward - self.mean) ** 2
        return Smoothed(
            DECAY * self.total + count * reward,
            DECAY * self.weight + count,
            DECAY * DECAY * self.squares + count * count,
            variance,
            self.rounds + 1,
        )


def squared_error_of(share: float, count: int) -> float:
    """Returns the variance of a share of ``count`` draws, so that 0 and 1 have an error too."""
    smoothed = min(max((share * count + 1) / (count + 2), 0.0), 1.0)
    return smoothed * (1 - smoothed) / count


@dataclass(slots=True)
class _Watched:
    """One task, as one way of measuring sees it."""

    best: float = -math.inf
    best_squared_error: float = 0.0
    best_round: int = 0
    best_seconds: float = 0.0
    now: float = 0.0
    near_round: int = 0  # the last one near the best
    near_seconds: float = 0.0
    lost: bool = False

    def see(self, levels: Sequence[float], squared_error: float, number: int, time_seconds: float) -> None:
        """Takes the newest levels, oldest first: as many as it takes to hold or to lose one."""
        self.now = levels[-1]
        if min(levels) >= self.best:
            self.best, self.best_squared_error = min(levels), squared_error
            self.best_round, self.best_seconds = number, time_seconds
        bound = max(LEAST_FALL, SIGMAS * math.sqrt(self.best_squared_error + squared_error))
        if self.best - self.now <= bound / 2:
            self.near_round, self.near_seconds = number, time_seconds
        fall = self.best - max(levels)
        if fall <= bound / 2:
            self.lost = False
        elif fall > bound:
            self.lost = True


@dataclass(slots=True)
class _OfTask:
    smoothed: Smoothed = field(default_factory=Smoothed)
    levels: deque[float] = field(default_factory=lambda: deque(maxlen=HOLD_ROUNDS))  # M after each round of it
    practice: _Watched = field(default_factory=_Watched)
    held_out: _Watched = field(default_factory=_Watched)
    practised_round: int = 0
    # Running means over about ``SHARE_ROUNDS`` rounds; those at the best are kept with it.
    share: float = 0.0
    from_others: float = 0.0
    share_at_best: float = 0.0
    from_others_at_best: float = 0.0
    others_round: int | None = None  # the last that learnt from a group of a peer


class LossWatch:
    """Collects what is recorded and answers with losses. Not for concurrent use."""

    def __init__(self) -> None:
        self._tasks: dict[str, _OfTask] = {}
        self._round = 0
        self._left: deque[tuple[int, str]] = deque(maxlen=MAX_EVENTS)  # after which round, in words
        self._others: deque[tuple[int, str]] = deque(maxlen=MAX_EVENTS)  # averagings and starts

    def add_round(self, done: RoundDone) -> None:
        self._round = done.round
        drawn = sum(done.completions_by_task.values())
        for task, reward in sorted(done.reward_by_task.items()):
            if task not in self._tasks and len(self._tasks) >= MAX_TASKS:
                continue
            known = self._tasks.setdefault(task, _OfTask())
            known.smoothed = known.smoothed.after(reward, done.completions_by_task.get(task, 0))
            known.practised_round = done.round
            known.levels.append(known.smoothed.mean)
            if len(known.levels) == HOLD_ROUNDS:
                error = known.smoothed.squared_error
                known.practice.see(known.levels, error, done.round, done.time_seconds)
        for task, known in self._tasks.items():
            share = done.completions_by_task.get(task, 0) / drawn if drawn else 0.0
            learnt = any(peer != "self" for peer in done.gradient_mass_by_task.get(task, {}))
            known.share += (share - known.share) / SHARE_ROUNDS
            known.from_others += (learnt - known.from_others) / SHARE_ROUNDS
            if learnt:
                known.others_round = done.round
            if known.practice.best_round == done.round or known.practice.near_round == done.round:
                known.share_at_best = max(known.share, known.share_at_best * (1 - 1 / SHARE_ROUNDS))
                known.from_others_at_best = max(known.from_others, known.from_others_at_best * (1 - 1 / SHARE_ROUNDS))

    def add_evaluation(self, measured: Evaluated) -> None:
        count = max(1, measured.prompts)
        for task, reward in sorted(measured.reward_by_task.items()):
            if not math.isfinite(reward) or (task not in self._tasks and len(self._tasks) >= MAX_TASKS):
                continue
            known = self._tasks.setdefault(task, _OfTask())
            known.held_out.see([reward], squared_error_of(reward, count), measured.round, measured.time_seconds)

    def add_peers(self, changed: PeersChanged) -> None:
        names = [printable(peer.name, NAME_BYTES) for peer in changed.left]
        for name in names:
            self._left.append((changed.round, name))
        if changed.left_total > len(names):
            self._left.append((changed.round, counted(changed.left_total - len(names), "further peer")))

    def add_averaging(self, averaged: Averaged) -> None:
        if averaged.partner is not None:
            self._others.append((averaged.round, f"weights were averaged with a peer after round {averaged.round}"))

    def add_start(self, ready: LearnerReady) -> None:
        if self._round:
            self._others.append((ready.round, f"the learner started again after round {ready.round}"))

    def answer(self) -> tuple[Loss, ...]:
        """Returns all losses of now, the greatest fall first; at most ``MAX_TASKS``."""
        losses = [
            self._loss(task, known, watched, measured)
            for task, known in self._tasks.items()
            for measured, watched in _worst(known)
        ]
        return tuple(sorted(losses, key=lambda loss: (-loss.fall, loss.task)))

    def _loss(self, task: str, known: _OfTask, watched: _Watched, measured: str) -> Loss:
        went_with = self._went_with(known, watched.near_round)
        loss = Loss(
            task=printable(task, NAME_BYTES),
            measured=measured,
            best=watched.best,
            best_round=watched.best_round,
            best_seconds=watched.best_seconds,
            now=watched.now,
            fall=watched.best - watched.now,
            since_round=watched.near_round,
            since_seconds=watched.near_seconds,
            went_with=went_with,
            sentence="",
        )
        return msgspec.structs.replace(loss, sentence=loss_sentence(loss))

    def _went_with(self, known: _OfTask, since: int) -> tuple[str, ...]:
        began = since - BEFORE_ROUNDS
        words = []
        left = [(number, name) for number, name in self._left if number >= began]
        if left:
            names = list(dict.fromkeys(name for _, name in left))
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            words.append(f"{shown} left after round {left[0][0]}")
        if known.from_others_at_best > 0.1 and known.from_others < HARDLY_DRAWN * known.from_others_at_best:
            last = "" if known.others_round is None else f", the last in round {known.others_round}"
            words.append(f"groups of peers on this task have become rare{last}")
        if self._round - known.practised_round >= SHARE_ROUNDS:
            words.append(f"it has not been practised since round {known.practised_round}")
        elif known.share < HARDLY_DRAWN * known.share_at_best:
            words.append(f"it is practised less: {known.share:.0%} of completions instead of {known.share_at_best:.0%}")
        words += [text for number, text in self._others if number >= began][:2]
        return tuple(words[:MAX_CAUSES])


def _worst(known: _OfTask) -> list[tuple[str, _Watched]]:
    """Returns the way of measuring that shows the greater loss, if any does."""
    lost = [
        (name, watched)
        for name, watched in (("practice", known.practice), ("held-out", known.held_out))
        if watched.lost
    ]
    return [max(lost, key=lambda item: item[1].best - item[1].now)] if lost else []
