"""The outcomes of one round's foreign groups: every decision counted by peer and by outcome, some groups in full.

The report is bounded and escaped. Groups that were fetched come before those that were passed over by their adverts
alone. Of the latter few are reported for each reason: they are many and alike.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from node.events import ForeignGroups, GroupOutcome
from node.printable import printable
from protocol.errors import ProtocolError
from protocol.limits import NAME_BYTES
from protocol.rollouts import Group
from swarm.api import SeenGroup

MAX_PEERS = 32  # counted by name; all further ones are counted together
OTHERS = "others"
MAX_GROUPS = 16  # reported one by one
MAX_PASSED_OVER_ALIKE = 3  # of them, for one reason
MAX_DETAIL_CHARACTERS = 200


class ForeignOutcome(StrEnum):
    """The outcome of a foreign group that follows the protocol. ``node.api.reasons`` has a sentence for each value.

    Values are stable: events, ``metrics.jsonl`` and the API carry them. A group that
    breaks the protocol is counted by the ``reason`` of its ``ProtocolError`` instead.
    """

    # trained on
    USED = "used"  # for the first time
    REPLAYED = "replayed"
    # passed over by its advert
    STALE = "stale"
    UNKNOWN_TASK = "unknown_task"
    TOO_LONG = "too_long"
    NOT_BETTER = "not_better"
    ALL_EQUAL = "all_equal"
    CROWDED_OUT = "crowded_out"
    COPY = "copy"  # by its advert, or by its content
    # chosen, and not here
    LATE = "late"
    NOT_FETCHED = "not_fetched"
    EVICTED = "evicted"
    # checked
    HELD_OUT = "held_out"
    FALSE_REWARD = "false_reward"
    NOT_SCORED = "not_scored"
    NOT_CHECKED = "not_checked"  # conversations for whose replay there was no time
    DIFFERS = "differs"  # conversations that go otherwise here
    WE_DIFFER = "we_differ"  # likewise, and as with this one's sender with most others'
    WITHOUT_GRADIENT = "without_gradient"
    NOT_CANONICAL = "not_canonical"
    NO_INFLUENCE = "no_influence"


TRAINED_ON = (ForeignOutcome.USED, ForeignOutcome.REPLAYED)
Decision = ForeignOutcome | ProtocolError  # a group that breaks the protocol is counted by the error's ``reason``


@dataclass(frozen=True, slots=True)
class Decided:
    """One group with its outcome."""

    outcome: str  # a ``ForeignOutcome``, or the ``reason`` of a ``ProtocolError``
    peer: str
    task: str
    rewards: tuple[float, ...]
    detail: str | None = None
    fetched: bool = True

    @classmethod
    def of_advert(cls, decision: Decision, seen: SeenGroup, detail: str | None = None) -> Decided:
        """The decision on a group that was not fetched, or not opened: its rewards are claims."""
        prompt, rewards = seen.advert.prompt, seen.advert.rewards
        return cls(name_of(decision), seen.peer, prompt.task, rewards, detail, fetched=detail is not None)

    @classmethod
    def of_group(cls, decision: Decision, peer: str, group: Group, detail: str | None = None) -> Decided:
        """The decision on a group that was fetched and opened."""
        rewards = tuple(completion.reward for completion in group.completions)
        return cls(name_of(decision), peer, group.prompt.task, rewards, detail)


@dataclass(slots=True)
class ForeignOutcomes:
    """Collects one round's decisions. Memory is bounded, whatever the number of groups and peers."""

    _counts: Counter[str] = field(default_factory=Counter)  # by outcome
    _by_peer: dict[str, Counter[str]] = field(default_factory=dict)
    _fetched: list[GroupOutcome] = field(default_factory=list)
    _passed_over: list[GroupOutcome] = field(default_factory=list)
    _alike: Counter[str] = field(default_factory=Counter)

    def note(self, decided: Decided) -> None:
        outcome = decided.outcome
        self._counts[outcome] += 1
        peer = decided.peer if decided.peer in self._by_peer or len(self._by_peer) < MAX_PEERS else OTHERS
        self._by_peer.setdefault(peer, Counter())[outcome] += 1
        if decided.fetched:
            if len(self._fetched) < MAX_GROUPS:
                self._fetched.append(_in_short(decided))
            return
        self._alike[outcome] += 1
        if self._alike[outcome] <= MAX_PASSED_OVER_ALIKE and len(self._passed_over) < MAX_GROUPS:
            self._passed_over.append(_in_short(decided))

    def note_late(self) -> None:
        """Counts the groups on their way as one late one: how many they are, and whose, is decided when they arrive."""
        self._counts[ForeignOutcome.LATE.value] += 1

    @property
    def used(self) -> int:
        """Groups trained on for the first time."""
        return self._counts[ForeignOutcome.USED]

    @property
    def replayed(self) -> int:
        """Groups trained on again."""
        return self._counts[ForeignOutcome.REPLAYED]

    def not_used(self) -> dict[str, int]:
        """Candidates and fetched groups that were not trained on, by reason, in alphabetical order."""
        return {outcome: count for outcome, count in sorted(self._counts.items()) if outcome not in TRAINED_ON}

    def event(self, now_seconds: float, round_number: int) -> ForeignGroups | None:
        """The round's report; None where nothing was decided."""
        if not self._by_peer:
            return None
        groups: Sequence[GroupOutcome] = [*self._passed_over[: MAX_GROUPS - len(self._fetched)], *self._fetched]
        by_peer = {peer: dict(outcomes) for peer, outcomes in self._by_peer.items()}
        return ForeignGroups(time_seconds=now_seconds, round=round_number, by_peer=by_peer, groups=tuple(groups))


def name_of(decision: Decision) -> str:
    """The short, stable name by which a decision is counted."""
    return decision.reason if isinstance(decision, ProtocolError) else decision.value


def _in_short(decided: Decided) -> GroupOutcome:
    return GroupOutcome(
        peer=decided.peer,
        task=printable(decided.task, NAME_BYTES),
        completions=len(decided.rewards),
        reward_mean=statistics.fmean(decided.rewards),
        reward_spread=statistics.pstdev(decided.rewards),
        outcome=decided.outcome,
        detail=None if decided.detail is None else printable(decided.detail, MAX_DETAIL_CHARACTERS),
    )
