"""Which of an owner's machines are away, and when layers are divided anew because of it. The decisions are pure.

    without a machine   once all that are missing have been away for ``away_seconds``, if the others can hold the model
    with a machine      at the end of a round, where fewer are used than are wanted, and ``between_plans_seconds``
                        after the newest plan

One ``Attendance`` lasts as long as the learner's process: a new plan is a new assembly in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

AWAY_SECONDS: Final = 120.0  # a machine that starts again is back by then
BETWEEN_PLANS_SECONDS: Final = 600.0  # what a new plan costs, seconds of loading, is little then
NEW_PLAN: Final = "new plan"  # why rounds end


def may_go_without(now_seconds: float, missing_since: Sequence[float], away_seconds: float) -> bool:
    """Returns whether nobody need wait any longer for machines that are missing since then."""
    return all(now_seconds - since >= away_seconds for since in missing_since)


def may_take_in(now_seconds: float, planned_at: float, used: int, wanted: int, between_plans_seconds: float) -> bool:
    """Returns whether a machine that has come may be taken in now."""
    return used < wanted and now_seconds - planned_at >= between_plans_seconds


@dataclass(frozen=True, slots=True)
class Away:
    """A machine that had layers, or room for some, and is not there."""

    peer: str
    name: str
    since_seconds: float
    because: str


@dataclass(slots=True)
class Attendance:
    """Seconds are those of ``Gathering.elapsed``."""

    away_seconds: float = AWAY_SECONDS
    between_plans_seconds: float = BETWEEN_PLANS_SECONDS
    began_seconds: float | None = None  # when machines were awaited first
    goes_on: bool = False  # rounds were done before: the machines of then need not all come
    planned_at_seconds: float | None = None  # the newest plan
    new_plan: str | None = None  # ``NEW_PLAN`` once rounds are to end for one
    away: dict[str, Away] = field(default_factory=dict)  # by peer
    distrusted: set[str] = field(default_factory=set)  # peers that are not taken again (``checking``)

    def starts(self, now_seconds: float, *, goes_on: bool) -> None:
        """Machines are awaited from now on; ``goes_on``: from a checkpoint."""
        if self.began_seconds is None:
            self.began_seconds = now_seconds
        self.goes_on |= goes_on
        self.new_plan = None

    def lost(self, away: Away) -> None:
        self.away[away.peer] = away

    def found(self, peer: str) -> None:
        self.away.pop(peer, None)

    def planned(self, now_seconds: float) -> None:
        self.planned_at_seconds, self.goes_on = now_seconds, True

    def newest_away(self, missing: int) -> list[Away]:
        """Returns as many machines as are missing, those that went last; fewer where they are not all known."""
        return sorted(self.away.values(), key=lambda each: each.since_seconds)[-missing:] if missing > 0 else []

    def may_go_without(self, now_seconds: float, missing: int) -> bool:
        """As the function, of so many machines; those that this process never saw are missing since it began."""
        if not self.goes_on or self.began_seconds is None:
            return False
        known = [each.since_seconds for each in self.newest_away(missing)]
        return may_go_without(now_seconds, [*known, self.began_seconds], self.away_seconds)

    def may_take_in(self, now_seconds: float, used: int, wanted: int) -> bool:
        planned_at = self.planned_at_seconds
        return planned_at is not None and may_take_in(now_seconds, planned_at, used, wanted, self.between_plans_seconds)
