"""Which of the groups that others announced are worth fetching. ``choose`` is a pure function that gives its reasons.

    score = gain + NUDGE · (uniform draw + 1/√(1 + groups already taken from that peer) − age / max age)
    gain  = mean R − V_θ(class)  for learner-relative advantages,  std R  for group advantages

Groups not used yet come first; places that they leave go to those used before, up to ``MOST_USES`` times in all, since
one step rarely teaches a right answer to a prompt that the learner cannot do.

The nudges are small: they break ties between equally useful groups towards fresh ones and peers little heard, and leave
room for a peer to be found better than thought. Everything here is from adverts, claims not yet checked; checking and
its consequences for the sender come after fetching.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from node.config import LearnerSection
from node.learner.advantages import learner_relative_gain
from node.tasks.task import Task
from swarm.api import SeenGroup

CANDIDATES = 1024  # kept for later rounds; the oldest make room
REMEMBERED_BLOBS = 8192  # taken or passed over for good, so that a second advert of one blob is not taken again
NUDGE = 0.05  # in units of reward
MOST_USES = 4  # of one group, while it is fresh
LEAST_GAIN = 0.01  # below it a group has nothing that the learner does not do itself as often


@dataclass(frozen=True, slots=True)
class Choice:
    """What to fetch, best first, and for every candidate that is out for good the reason."""

    chosen: tuple[SeenGroup, ...]
    passed_over: Mapping[bytes, str]  # blob: "stale", "unknown_task", "not_better", "all_equal"

    def reasons(self) -> Counter[str]:
        return Counter(self.passed_over.values())


@dataclass(slots=True)
class ReplayPool:
    """Candidates and how often each was used, and which groups are out for good. Not for concurrent use."""

    cursor: int = 0  # of the newest group seen
    candidates: OrderedDict[bytes, SeenGroup] = field(default_factory=OrderedDict)
    uses: dict[bytes, int] = field(default_factory=dict)  # of candidates used before
    decided: OrderedDict[bytes, None] = field(default_factory=OrderedDict)  # out for good
    taken_from: Counter[str] = field(default_factory=Counter)

    def add(self, seen: Iterable[SeenGroup]) -> None:
        for group in seen:
            self.cursor = group.cursor
            blob = group.advert.blob
            if blob not in self.decided and blob not in self.candidates:
                self.candidates[blob] = group
        while len(self.candidates) > CANDIDATES:
            blob, _ = self.candidates.popitem(last=False)
            if self.uses.pop(blob, 0):
                self._decide(blob)

    def settle(self, choice: Choice) -> None:
        """Counts the chosen as used once more; takes out for good what was passed over or used often enough."""
        for group in choice.chosen:
            blob = group.advert.blob
            self.taken_from[group.peer] += blob not in self.uses
            self.uses[blob] = self.uses.get(blob, 0) + 1
            if self.uses[blob] >= MOST_USES:
                self._decide(blob)
        for blob in choice.passed_over:
            self._decide(blob)

    def drop(self, blob: bytes) -> None:
        """Takes a candidate out for good: it did not stand up to checking, or cannot be had."""
        self._decide(blob)

    def _decide(self, blob: bytes) -> None:
        self.candidates.pop(blob, None)
        self.uses.pop(blob, None)
        self.decided[blob] = None
        while len(self.decided) > REMEMBERED_BLOBS:
            self.decided.popitem(last=False)

    def position(self) -> dict[str, Any]:
        """For a checkpoint: what a restarted learner must know so as to use no group twice."""
        decided = [blob.hex() for blob in [*self.decided, *self.uses]]
        return {"decided": decided[-REMEMBERED_BLOBS:], "taken_from": dict(self.taken_from)}

    @classmethod
    def restored(cls, position: Mapping[str, Any]) -> ReplayPool:
        decided = OrderedDict((bytes.fromhex(blob), None) for blob in position["decided"])
        # Candidates are not kept: the swarm process is asked for them again, from the beginning of what it holds.
        return cls(decided=decided, taken_from=Counter(position["taken_from"]))


def choose(
    now_seconds: float,
    pool: ReplayPool,
    tasks: Mapping[str, Task],
    success: Callable[[str], float],
    section: LearnerSection,
    draws: random.Random,
) -> Choice:
    """At most ``section.foreign_groups`` candidates. Changes nothing but the state of ``draws``."""
    passed_over: dict[bytes, str] = {}
    scored: list[tuple[int, float, SeenGroup]] = []
    for blob, group in pool.candidates.items():
        age_seconds = max(0.0, now_seconds - group.seen_at_seconds)
        reason, gain = _usefulness(group, age_seconds, tasks, success, section)
        if reason is not None:
            passed_over[blob] = reason
            continue
        variety = 1 / math.sqrt(1 + pool.taken_from[group.peer])
        nudge = NUDGE * (draws.random() + variety - age_seconds / section.max_age_seconds)
        scored.append((pool.uses.get(blob, 0), -(gain + nudge), group))
    scored.sort(key=lambda each: (each[0], each[1], each[2].advert.blob))
    ranked = [group for _, _, group in scored]
    return Choice(tuple(_within_peer_share(ranked, section.foreign_groups, section.peer_share)), passed_over)


def _usefulness(
    group: SeenGroup,
    age_seconds: float,
    tasks: Mapping[str, Task],
    success: Callable[[str], float],
    section: LearnerSection,
) -> tuple[str | None, float]:
    """(why it is of no use, or None; how much it promises)."""
    prompt, rewards = group.advert.prompt, group.advert.rewards
    if age_seconds > section.max_age_seconds:
        return "stale", 0.0
    task = tasks.get(prompt.task)
    if task is None or (task.version, task.config_hash) != (prompt.version, prompt.config_hash):
        return "unknown_task", 0.0
    if section.foreign_advantage == "group":
        spread = statistics.pstdev(rewards)
        return (None, spread) if spread > 0 else ("all_equal", 0.0)
    gain = learner_relative_gain(statistics.fmean(rewards), success(prompt.task))
    return (None, gain) if gain >= LEAST_GAIN else ("not_better", 0.0)


def _within_peer_share(ranked: Sequence[SeenGroup], wanted: int, peer_share: float) -> list[SeenGroup]:
    """The first ``wanted``, from any one peer no more than its share as long as others have groups to fill the rest."""
    limit = max(1, math.ceil(peer_share * wanted))
    taken: Counter[str] = Counter()
    within: list[SeenGroup] = []
    beyond: list[SeenGroup] = []
    for group in ranked:
        taken[group.peer] += 1
        (within if taken[group.peer] <= limit else beyond).append(group)
    return [*within, *beyond][:wanted]
