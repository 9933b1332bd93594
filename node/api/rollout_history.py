"""What this node did with rollout groups lately, and why some were not used: collected from the learner's events.

Memory is bounded whatever peers do: ``MAX_ROUNDS`` rounds, ``MAX_GROUPS`` groups, and the outcomes of those
``MAX_PEERS`` peers from which groups came last.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping

from node.api.reasons import WORDS, why_not, words_for
from node.api.types import GroupSeen, NodeStatus, PeersAnswer, RolloutsAnswer, RoundRollouts
from node.events import ForeignGroups, GroupOutcome, RoundDone
from node.printable import printable

MAX_ROUNDS = 100
MAX_GROUPS = 256
MAX_PEERS = 1024
MAX_REASONS = 256  # of one counter: they are words of this program, so more would be a fault of ours
MAX_DETAIL_CHARACTERS = 200


class RolloutHistory:
    """Collects events and answers with them. Not for concurrent use."""

    def __init__(self) -> None:
        self._rounds: deque[RoundRollouts] = deque(maxlen=MAX_ROUNDS)
        self._groups: deque[tuple[float, int, GroupOutcome]] = deque(maxlen=MAX_GROUPS)
        self._not_used: Counter[str] = Counter()
        self._by_peer: OrderedDict[str, Counter[str]] = OrderedDict()

    def add_round(self, done: RoundDone) -> None:
        self._rounds.append(_round(done))
        _add(self._not_used, done.foreign_rejected)

    def add_groups(self, decided: ForeignGroups) -> None:
        self._groups.extend((decided.time_seconds, decided.round, group) for group in decided.groups)
        for peer, outcomes in decided.by_peer.items():
            _add(self._by_peer.setdefault(peer, Counter()), outcomes)
            self._by_peer.move_to_end(peer)
        while len(self._by_peer) > MAX_PEERS:
            self._by_peer.popitem(last=False)

    def outcomes_of(self, peer: str) -> dict[str, int]:
        """Returns the outcomes of the groups of ``peer``."""
        return dict(self._by_peer.get(peer, {}))

    def answer(self, status: NodeStatus, peers: PeersAnswer) -> RolloutsAnswer:
        names = {peer.peer: peer.heartbeat.name for peer in peers.peers if peer.heartbeat is not None}
        return RolloutsAnswer(
            rounds=tuple(self._rounds),
            groups=tuple(_group(time_seconds, number, group, names) for time_seconds, number, group in self._groups),
            not_used=why_not(self._not_used),
            announcements_not_taken=why_not(status.swarm.rejected) if status.swarm is not None else (),
            words=dict(WORDS),
        )


def _add(counter: Counter[str], counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        if name in counter or len(counter) < MAX_REASONS:
            counter[name] += count


def _round(done: RoundDone) -> RoundRollouts:
    return RoundRollouts(
        round=done.round,
        time_seconds=done.time_seconds,
        generated=done.own_groups,
        informative=done.own_groups_informative,
        dropped=done.own_groups_dropped,
        unfinished=done.own_groups_unfinished,
        offered=done.groups_offered,
        fetched=done.foreign_fetched,
        used=done.foreign_groups_used,
        replayed=done.foreign_groups_replayed,
        waiting=done.foreign_waiting,
        not_used=done.foreign_rejected,
        fetched_bytes=done.bytes_fetched,
        alone_because=None if done.alone_because is None else printable(done.alone_because, MAX_DETAIL_CHARACTERS),
    )


def _group(time_seconds: float, number: int, group: GroupOutcome, names: Mapping[str, str]) -> GroupSeen:
    return GroupSeen(
        time_seconds=time_seconds,
        round=number,
        peer=printable(group.peer),
        name=names.get(group.peer),
        task=printable(group.task, 64),
        completions=group.completions,
        reward_mean=group.reward_mean,
        reward_spread=group.reward_spread,
        outcome=group.outcome,
        because=words_for(group.outcome),
        detail=None if group.detail is None else printable(group.detail, MAX_DETAIL_CHARACTERS),
    )
