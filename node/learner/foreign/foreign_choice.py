"""Which of the groups that others announced are worth fetching. ``choose`` is a pure function that gives its reasons.

    "gain"     score = reliability · use + NUDGE · (draw + variety + closeness − age / max age)
               use = mean R − V_θ(class)          for learner-relative advantages
                     std R · (1 − V_θ(class))     for group advantages, where a class that we master teaches little
               variety = 1/√(1 + groups taken from that peer),   closeness = 1/(1 + measured divergence / FAR)
    "uniform"  SAPO's rule (arXiv 2509.08721): groups of equal rewards are dropped, of the others any

Under "gain" groups not used yet come first; places that they leave go to those used before, up to ``foreign_uses``
times in all, since one step rarely teaches a right answer to a prompt that the learner cannot do. No peer fills more
than its share while others have groups too.

The nudges are small: they break ties between equally useful groups towards fresh ones, peers little heard and policies
near ours, and leave room for a peer to be found better than thought. Distance is not weighed more than that: who has
what we lack is far from us just there. All that is known here are adverts, claims not yet checked; they are checked
after fetching, and a peer whose claims mostly did not hold comes after all others, whatever it claims.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from node.configuration import ForeignAdvantage, LearnerSection, ResearchSection
from node.learner.foreign.replay import ForeignChoice, ReplayPool
from node.learner.objective.advantages import learner_relative_gain
from node.tasks.task import Task
from swarm.api import SeenGroup

NUDGE = 0.05  # in units of reward
MIN_GAIN = 0.01  # below it a group has nothing that the learner does not do itself as often
FAR_NATS = 50.0  # divergence of a completion at which closeness is a half
DOUBTED = 0.5  # reliability below which a peer comes last
DEFAULT_RESEARCH = ResearchSection()


def choose(
    now_seconds: float,
    pool: ReplayPool,
    tasks: Mapping[str, Task],
    success: Callable[[str], float],
    section: LearnerSection,
    draws: random.Random,
    research: ResearchSection = DEFAULT_RESEARCH,
) -> ForeignChoice:
    """At most ``section.foreign_groups`` candidates. Changes nothing but the state of ``draws``."""
    passed_over: dict[bytes, str] = {}
    useful: list[tuple[SeenGroup, float]] = []
    for blob, group in pool.candidates.items():
        age_seconds = now_seconds - group.seen_at_seconds
        reason = _unfit(group, age_seconds, tasks, section)
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
    doubted = [group for group in ranked if pool.peer(group.peer).reliability < DOUBTED]
    believed = [group for group in ranked if pool.peer(group.peer).reliability >= DOUBTED]
    wanted, share = section.foreign_groups, section.peer_share
    chosen = [*_within_peer_share(believed, wanted, share), *_within_peer_share(doubted, wanted, share)]
    return ForeignChoice(tuple(chosen[:wanted]), passed_over)


def _unfit(group: SeenGroup, age_seconds: float, tasks: Mapping[str, Task], section: LearnerSection) -> str | None:
    prompt = group.advert.prompt
    if age_seconds > section.max_age_seconds:
        return "stale"
    task = tasks.get(prompt.task)
    if task is None or (task.version, task.config_hash) != (prompt.version, prompt.config_hash):
        return "unknown_task"
    return None


def _use(group: SeenGroup, success: float, foreign_advantage: ForeignAdvantage) -> tuple[str | None, float]:
    """(why it is of no use, or None; how much it promises)."""
    if foreign_advantage == "group":
        reason, spread = _spread(group)
        return reason, spread * max(0.0, 1 - success)
    gain = learner_relative_gain(statistics.fmean(group.advert.rewards), success)
    return (None, gain) if gain >= MIN_GAIN else ("not_better", 0.0)


def _spread(group: SeenGroup) -> tuple[str | None, float]:
    spread = statistics.pstdev(group.advert.rewards)
    return (None, spread) if spread > 0 else ("all_equal", 0.0)


def _ranked(
    now_seconds: float,
    useful: Sequence[tuple[SeenGroup, float]],
    pool: ReplayPool,
    section: LearnerSection,
    draws: random.Random,
) -> list[SeenGroup]:
    """Best first."""
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
    """The first ``wanted``, from any one peer no more than its share as long as others have groups to fill the rest."""
    limit = max(1, math.ceil(peer_share * wanted))
    taken: Counter[str] = Counter()
    within: list[SeenGroup] = []
    beyond: list[SeenGroup] = []
    for group in ranked:
        taken[group.peer] += 1
        (within if taken[group.peer] <= limit else beyond).append(group)
    return [*within, *beyond][:wanted]
