"""What became of foreign groups in one round, for its report: counts by peer, some groups in full. Bounded and escaped.

Groups that were fetched come before those that were passed over by their adverts alone, of which few are told for each
reason: they are many and alike.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from node.events import ForeignGroups, GroupOutcome
from node.printable import printable
from protocol.limits import NAME_BYTES
from protocol.rollouts import Group
from swarm.api import SeenGroup

PEERS = 32  # counted by name; all further ones together
OTHERS = "others"
GROUPS = 16  # told one by one
PASSED_OVER_ALIKE = 3  # of them, for one reason
DETAIL_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Decided:
    """One group, and what became of it: "used", "replayed", or why not."""

    outcome: str
    peer: str
    task: str
    rewards: tuple[float, ...]
    detail: str | None = None
    fetched: bool = True

    @classmethod
    def of_advert(cls, outcome: str, seen: SeenGroup, detail: str | None = None) -> Decided:
        """Of a group that was not fetched, or not opened: its rewards are claims."""
        return cls(outcome, seen.peer, seen.advert.prompt.task, seen.advert.rewards, detail, fetched=detail is not None)

    @classmethod
    def of_group(cls, outcome: str, peer: str, group: Group, detail: str | None = None) -> Decided:
        return cls(outcome, peer, group.prompt.task, tuple(each.reward for each in group.completions), detail)


@dataclass(slots=True)
class ForeignOutcomes:
    """Takes note of one round's decisions."""

    _by_peer: dict[str, Counter[str]] = field(default_factory=dict)
    _fetched: list[GroupOutcome] = field(default_factory=list)
    _passed_over: list[GroupOutcome] = field(default_factory=list)
    _alike: Counter[str] = field(default_factory=Counter)

    def note(self, decided: Decided) -> None:
        peer = decided.peer if decided.peer in self._by_peer or len(self._by_peer) < PEERS else OTHERS
        self._by_peer.setdefault(peer, Counter())[decided.outcome] += 1
        if decided.fetched:
            if len(self._fetched) < GROUPS:
                self._fetched.append(_in_short(decided))
            return
        self._alike[decided.outcome] += 1
        if self._alike[decided.outcome] <= PASSED_OVER_ALIKE and len(self._passed_over) < GROUPS:
            self._passed_over.append(_in_short(decided))

    def event(self, now_seconds: float, round_number: int) -> ForeignGroups | None:
        """None where nothing was decided."""
        if not self._by_peer:
            return None
        groups: Sequence[GroupOutcome] = [*self._passed_over[: GROUPS - len(self._fetched)], *self._fetched]
        by_peer = {peer: dict(outcomes) for peer, outcomes in self._by_peer.items()}
        return ForeignGroups(time_seconds=now_seconds, round=round_number, by_peer=by_peer, groups=tuple(groups))


def _in_short(decided: Decided) -> GroupOutcome:
    return GroupOutcome(
        peer=decided.peer,
        task=printable(decided.task, NAME_BYTES),
        completions=len(decided.rewards),
        reward_mean=statistics.fmean(decided.rewards),
        reward_spread=statistics.pstdev(decided.rewards),
        outcome=decided.outcome,
        detail=None if decided.detail is None else printable(decided.detail, DETAIL_CHARACTERS),
    )
