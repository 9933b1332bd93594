"""Whether this machine's clock is wrong, by the clocks of connected peers: a pure judgement of their offsets.

Nobody is blamed by one peer alone: two clocks that differ say only that one of them is wrong. Several peers that agree
with each other and not with us say that ours is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from node.quantities import counted
from protocol.limits import CLOCK_WINDOW_SECONDS

MAX_OFFSET_SECONDS: Final = 30.0  # that a clock may differ; also within what peers must agree with each other
PEERS_TO_BLAME: Final = 3  # at least, that agree with each other
LOOKS_TO_TELL: Final = 3  # in a row with the same verdict, before it is told


@dataclass(frozen=True, slots=True)
class ClockVerdict:
    """What is wrong with a clock."""

    ours: bool  # whether ours is the wrong one; False: one of two is, and nobody can say which
    message: str
    remedy: str


def judge_offsets(offsets_seconds: Sequence[float]) -> ClockVerdict | None:
    """Returns what the clocks of connected peers, each minus ours, say of ours; None where nothing is wrong with it."""
    if not offsets_seconds:
        return None
    middle = median(offsets_seconds)
    far = [offset for offset in offsets_seconds if abs(offset) > MAX_OFFSET_SECONDS]
    agreeing = [offset for offset in far if abs(offset - middle) <= MAX_OFFSET_SECONDS]
    peers = counted(len(offsets_seconds), "connected peer")
    set_it = "set this machine's clock: turn on time synchronisation (timedatectl set-ntp true)"
    if len(agreeing) >= PEERS_TO_BLAME and 2 * len(agreeing) > len(offsets_seconds):
        where = "behind" if middle > 0 else "ahead of"
        beyond = abs(middle) > CLOCK_WINDOW_SECONDS
        follows = "; peers refuse all that this node announces, and it refuses theirs" if beyond else ""
        return ClockVerdict(
            ours=True,
            message=f"this machine's clock is {_far(middle)} {where} those of {len(agreeing)} of {peers}, which agree "
            f"with each other{follows}",
            remedy=set_it,
        )
    if len(offsets_seconds) < PEERS_TO_BLAME and len(far) == len(offsets_seconds):
        whose = "that of the one connected peer" if len(far) == 1 else "those of the two connected peers"
        return ClockVerdict(
            ours=False,
            message=f"this machine's clock and {whose} differ by {_far(max(far, key=abs))}: one of them is wrong",
            remedy="compare this machine's time with a watch, and if it is wrong, " + set_it,
        )
    return None


@dataclass(slots=True)
class ClockWatch:
    """Tells a verdict once it has lasted for a few looks, since a heartbeat may be late."""

    told: ClockVerdict | None = None
    _looks: int = 0

    def look(self, offsets_seconds: Sequence[float]) -> bool:
        """Returns whether there is news: ``told`` says something now that it did not, or nothing any more."""
        verdict = judge_offsets(offsets_seconds)
        if (verdict and verdict.ours) == (self.told and self.told.ours):
            self._looks = 0
            return False
        self._looks += 1
        if self._looks < LOOKS_TO_TELL:
            return False
        self.told, self._looks = verdict, 0
        return True


def _far(seconds: float) -> str:
    seconds = abs(seconds)
    if seconds < 300:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
