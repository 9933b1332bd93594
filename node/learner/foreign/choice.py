"""Which of the groups that others announced are worth fetching. ``choose`` is a pure function that gives its reasons.

    "gain"     score = reliability · use + NUDGE · (draw + variety + closeness − age / max age)
               use = mean R − V_θ(class)          for learner-relative advantages
                     std R · (1 − V_θ(class))     for group advantages, where a class that we master teaches little
               variety = 1/√(1 + groups taken from that peer),   closeness = 1/(1 + measured divergence / FAR_NATS)
    "uniform"  SAPO's rule (arXiv 2509.08721): groups of equal rewards are dropped, any of the others are drawn

Under "gain" groups that have not been used yet come first. Places that they leave go to groups used before, up to
``foreign_uses`` times in all, since one step rarely teaches a right answer to a prompt that the learner cannot do. No
peer fills more than its share while others have groups too.

The nudges are small. They break ties between equally useful groups towards fresh ones, towards peers from whom few
groups were taken and towards policies near ours, and they leave room for a peer to turn out better than estimated.
Distance weighs no more than that: a peer that has what we lack is far from us precisely there. Everything known here
comes from adverts, whose claims have not been checked. They are checked after fetching, and a peer most of whose claims
did not hold comes after all others, whatever it claims.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from node.configuration import ForeignAdvantage, LearnerSection, ResearchSection
from node.learner.foreign.outcomes import ForeignOutcome
from node.learner.foreign.replay import ForeignChoice, ReplayPool
from node.learner.objective.advantages import learner_relative_gain
from node.tasks.task import Task
from swarm.api import SeenGroup

NUDGE = 0.05  # in units of reward
MIN_GAIN = 0.01  # a group below it has nothing that the learner does not achieve as often by itself
FAR_NATS = 50.0  # divergence per completion at which closeness is one half
MIN_RELIABILITY = 0.5  # a peer below it comes last
DEFAULT_RESEARCH = ResearchSection()


def choose(
    now_seconds: float,
    pool: ReplayPool,
    tasks: Mapping[str, Task],
    success: Callable[[str], float],
    section: LearnerSection,
    draws: random.Random,
    research: ResearchSection = DEFAULT_RESEARCH,
    admits: Callable[[str], bool] = lambda peer: True,
) -> ForeignChoice:
    """Chooses at most ``section.foreign_groups`` candidates. Changes nothing but the state of ``draws``."""
    passed_over: dict[bytes, ForeignOutcome] = {}
    useful: list[tuple[SeenGroup, float]] = []
    for blob, group in pool.candidates.items():
        age_seconds = now_seconds - group.seen_at_seconds
        reason = _unfit(group, age_seconds, tasks, section)
        if reason is None and not admits(group.peer):
            reason = ForeignOutcome.NO_INFLUENCE
        if reason is None and research.foreign_choice == "uniform":
            reason, use = _spread(group)
        elif reason is None:
            reason, use = _use(group, success(group.advert.prompt.task), research.foreign_advantage)
        if reason is not None:
            passed_over[blob] = reason
        else:
            useful.append((group, use))
    if research.foreign_choice == "uniform":
        drawn = draws.sample(useful, min(section.foreign_groups, len(useful)))
        return ForeignChoice(tuple(group for group, _ in drawn), passed_over)
    ranked = _ranked(now_seconds, useful, pool, section, draws)
    doubted = [group for group in ranked if pool.peer(group.peer).reliability < MIN_RELIABILITY]
    believed = [group for group in ranked if pool.peer(group.peer).reliability >= MIN_RELIABILITY]
    wanted, share = section.foreign_groups, section.peer_share
    chosen = [*_within_peer_share(believed, wanted, share), *_within_peer_share(doubted, wanted, share)]
    return ForeignChoice(tuple(chosen[:wanted]), passed_over)


def _unfit(
    group: SeenGroup, age_seconds: float, tasks: Mapping[str, Task], section: LearnerSection
) -> ForeignOutcome | None:
    prompt = group.advert.prompt
    if age_seconds > section.max_age_seconds:
        return ForeignOutcome.STALE
    task = tasks.get(prompt.task)
    if task is None or (task.version, task.config_hash) != (prompt.version, prompt.config_hash):
        return ForeignOutcome.UNKNOWN_TASK
    return None


def _use(group: SeenGroup, success: float, foreign_advantage: ForeignAdvantage) -> tuple[ForeignOutcome | None, float]:
    """Returns the reason to pass the group over, or None, and its use as defined above."""
    if foreign_advantage == "group":
        reason, spread = _spread(group)
        return reason, spread * max(0.0, 1 - success)
    gain = learner_relative_gain(statistics.fmean(group.advert.rewards), success)
    return (None, gain) if gain >= MIN_GAIN else (ForeignOutcome.NOT_BETTER, 0.0)


def _spread(group: SeenGroup) -> tuple[ForeignOutcome | None, float]:
    """Returns the reason to pass the group over, or None, and the standard deviation of its rewards."""
    spread = statistics.pstdev(group.advert.rewards)
    return (None, spread) if spread > 0 else (ForeignOutcome.ALL_EQUAL, 0.0)


def _ranked(
    now_seconds: float,
    useful: Sequence[tuple[SeenGroup, float]],
    pool: ReplayPool,
    section: LearnerSection,
    draws: random.Random,
) -> list[SeenGroup]:
    """Returns the groups, best first."""
    scored: list[tuple[int, float, bytes, SeenGroup]] = []
    for group, use in useful:
        peer, blob = pool.peer(group.peer), group.advert.blob
        age = max(0.0, now_seconds - group.seen_at_seconds) / section.max_age_seconds
        variety = 1 / math.sqrt(1 + peer.groups_taken)
        closeness = 1 / (1 + max(0.0, peer.divergence or 0.0) / FAR_NATS)
        score = peer.reliability * use + NUDGE * (draws.random() + variety + closeness - age)
        scored.append((pool.uses.get(blob, 0), -score, blob, group))
    scored.sort(key=lambda each: each[:3])
    return [group for _, _, _, group in scored]


def _within_peer_share(ranked: Sequence[SeenGroup], wanted: int, peer_share: float) -> list[SeenGroup]:
    """Returns the first ``wanted``. One peer gets no more than its share while others have groups to fill the rest."""
    limit = max(1, math.ceil(peer_share * wanted))
    taken: Counter[str] = Counter()
    within: list[SeenGroup] = []
    beyond: list[SeenGroup] = []
    for group in ranked:
        taken[group.peer] += 1
        (within if taken[group.peer] <= limit else beyond).append(group)
    return [*within, *beyond][:wanted]
