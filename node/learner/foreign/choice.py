"""Chooses the announced groups that are worth fetching. ``choose`` is a pure function that gives its reasons.

    "gain"     score = reliability · use + NUDGE · (draw + variety + closeness − age / max age)
               use = mean R − V_θ(class)          for learner-relative advantages
                     std R · (1 − V_θ(class))     for group advantages, where a class that we master teaches little
               variety = 1/√(1 + groups taken from that peer),   closeness = 1/(1 + measured divergence / FAR_NATS)
    "uniform"  SAPO's rule (arXiv 2509.08721): groups of equal rewards are dropped, any of the others are drawn; for
               advantages by capability none are dropped, since all of them say how capable a peer is

Under "gain" groups that have not been used yet come first. Places that they leave go to groups used before, up to
``foreign_uses`` times in all, since one step rarely teaches a right answer to a prompt that the learner cannot do. No
peer fills more than its share while others have groups too.

Everything known here comes from adverts, whose claims have not been checked. So the score, which follows from claims,
decides only among the groups of one peer and among peers whose claims held before (``peer_records``). To these all
places are kept but ``STRANGERS_SHARE`` and those that they leave empty. Strangers have the other places together, each
in turn, connected ones first, whatever they claim. Peers that lied or do not serve get what these leave, and rest. Of
adverts that seem to announce one group, one is chosen. An advert that no group of its task can have is passed over.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from node.configuration import ForeignAdvantage, LearnerSection, ResearchSection
from node.environments.conversation import most_tokens
from node.learner.foreign.outcomes import ForeignOutcome
from node.learner.foreign.peer_records import HELD_TO_BE_PROVEN, MIN_RELIABILITY, PROVEN_RELIABILITY, PeerRecords
from node.learner.foreign.replay import ForeignChoice, Key, ReplayPool, key_of
from node.learner.objective.advantages import learner_relative_gain
from node.tasks.task import Task
from protocol import limits
from protocol.rollouts import most_blob_bytes
from swarm.announcements.crowding import Standing
from swarm.api import SeenGroup

NUDGE = 0.05  # in units of reward
MIN_GAIN = 0.01  # a group below it has nothing that the learner does not achieve as often by itself
FAR_NATS = 50.0  # divergence per completion at which closeness is one half
STRANGERS_SHARE = 1 / 8  # of the places, for all peers together that are not proven, while proven ones fill the rest
ROUND_TOKENS = 2**21  # of the groups of one round: opened they take 44 MB and their texts
DEFAULT_RESEARCH = ResearchSection()


def choose(
    now_seconds: float,
    pool: ReplayPool,
    tasks: Mapping[str, Task],
    success: Callable[[str], float],
    section: LearnerSection,
    draws: random.Random,
    research: ResearchSection = DEFAULT_RESEARCH,
    *,
    try_strangers: bool = True,
    admits: Callable[[str], bool] = lambda peer: True,
) -> ForeignChoice:
    """Chooses at most ``section.most_foreign_groups`` candidates, those of proven peers first.

    Without ``try_strangers`` nobody else is chosen as long as a proven peer has a group. Changes nothing but the state
    of ``draws``.
    """
    passed_over: dict[Key, ForeignOutcome] = {}
    useful: list[tuple[SeenGroup, float]] = []
    for key, group in pool.candidates.items():
        age_seconds = now_seconds - group.seen_at_seconds
        reason = _unfit(group, age_seconds, tasks, section)
        if reason is None and not admits(group.peer):
            reason = ForeignOutcome.NO_INFLUENCE
        if reason is None and pool.is_copy(key, pool.outlines[key], now_seconds):
            reason = ForeignOutcome.COPY
        if reason is None and research.foreign_choice == "uniform":
            reason, use = _spread(group) if research.foreign_advantage != "capability" else (None, 0.0)
        elif reason is None:
            reason, use = _use(group, success(group.advert.prompt.task), research.foreign_advantage)
        if reason is not None:
            passed_over[key] = reason
        elif not pool.peers.rests(group.peer, now_seconds):
            useful.append((group, use))
    if research.foreign_choice == "uniform":
        drawn = draws.sample(useful, min(section.most_foreign_groups, len(useful)))
        return ForeignChoice(tuple(group for group, _ in drawn), passed_over)
    ranked = _ranked(now_seconds, _distinct(useful, pool), pool, section, draws)
    wanted = section.most_foreign_groups
    proven = [group for group in ranked if pool.peers.standing(group.peer) is Standing.PROVEN]
    others = [group for group in ranked if pool.peers.standing(group.peer) is not Standing.PROVEN]
    kept = _within_peer_share(proven, wanted, section.peer_share)
    strange = sum(pool.peers.of(group.peer).reliability >= MIN_RELIABILITY for group in others)
    places = max(min(math.ceil(STRANGERS_SHARE * wanted), strange), wanted - len(kept))
    tried = _in_turn(others, pool.peers, draws)[:places] if try_strangers or not kept else []
    return ForeignChoice(tuple(_within_tokens([*kept[: wanted - len(tried)], *tried])), passed_over)


def _unfit(
    group: SeenGroup, age_seconds: float, tasks: Mapping[str, Task], section: LearnerSection
) -> ForeignOutcome | None:
    prompt = group.advert.prompt
    if age_seconds > section.max_age_seconds:
        return ForeignOutcome.STALE
    task = tasks.get(prompt.task)
    if task is None or (task.version, task.config_hash) != (prompt.version, prompt.config_hash):
        return ForeignOutcome.UNKNOWN_TASK
    tokens = sum(group.advert.lengths)
    too_long = max(group.advert.lengths) > most_tokens(task) or tokens > limits.GROUP_TOKENS
    return ForeignOutcome.TOO_LONG if too_long or group.advert.size > most_blob_bytes(tokens) else None


def _use(group: SeenGroup, success: float, foreign_advantage: ForeignAdvantage) -> tuple[ForeignOutcome | None, float]:
    """Returns the reason to pass the group over, or None, and its use as defined above."""
    if foreign_advantage != "learner":
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
    scored: list[tuple[int, float, Key, SeenGroup]] = []
    for group, use in useful:
        peer, key = pool.peers.of(group.peer), key_of(group)
        age = max(0.0, now_seconds - group.seen_at_seconds) / section.max_age_seconds
        variety = 1 / math.sqrt(1 + peer.groups_taken)
        closeness = 1 / (1 + max(0.0, peer.divergence or 0.0) / FAR_NATS)
        score = peer.reliability * use + NUDGE * (draws.random() + variety + closeness - age)
        scored.append((pool.uses.get(key, 0), -score, key, group))
    scored.sort(key=lambda each: each[:3])
    return [group for _, _, _, group in scored]


def _distinct(useful: Sequence[tuple[SeenGroup, float]], pool: ReplayPool) -> list[tuple[SeenGroup, float]]:
    """Returns one of the groups that seem to be one: that of the best standing, and of these the first announced."""
    taken: set[bytes] = set()
    distinct: list[tuple[SeenGroup, float]] = []
    for group, use in sorted(useful, key=lambda each: (-pool.peers.standing(each[0].peer), each[0].cursor)):
        names = {group.advert.blob, pool.outlines[key_of(group)]}
        if taken.isdisjoint(names):
            distinct.append((group, use))
            taken |= names
    return distinct


def _in_turn(ranked: Sequence[SeenGroup], peers: PeerRecords, draws: random.Random) -> list[SeenGroup]:
    """Returns the groups in the order in which peers that are not proven are tried: each has its best group tried
    before any has a second one. What they claim does not matter; those from which little was taken come first."""
    of_peer: dict[str, list[SeenGroup]] = {}
    for group in ranked:
        of_peer.setdefault(group.peer, []).append(group)

    def turn(peer: str) -> tuple[float, ...]:
        record = peers.of(peer)
        promising = record.held if record.reliability >= PROVEN_RELIABILITY else 0
        doubted = record.reliability < MIN_RELIABILITY
        tries = record.groups_taken
        return doubted, -peers.standing(peer), -min(promising, HELD_TO_BE_PROVEN), tries, draws.random()

    turns = [of_peer[peer] for peer in sorted(of_peer, key=turn)]
    return [group for lot in itertools.zip_longest(*turns) for group in lot if group is not None]


def _within_tokens(chosen: Sequence[SeenGroup]) -> list[SeenGroup]:
    """Returns the groups that fit into ``ROUND_TOKENS``; the others wait for a later round."""
    tokens = 0
    within: list[SeenGroup] = []
    for group in chosen:
        if tokens + sum(group.advert.lengths) <= ROUND_TOKENS:
            tokens += sum(group.advert.lengths)
            within.append(group)
    return within


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
