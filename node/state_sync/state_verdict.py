"""Whether announced weights are kept, once they were measured here beside those that the node had. Pure.

    keep ⇔ after > 0  ∧  after ≥ before − 2 √(e_after² + e_before²)  ∧  (nobody claimed a success, or one claim holds)
    a claim c holds ⇔ c ≤ after + 3 e_after + 0.1

Claims are running means over rounds, on prompts that an allocator chose; hence the tenth. A peer gains nothing by a
claim that is too high: the weights are rejected and it loses reputation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

NOISES: Final = 2.0  # one in forty equally good states is taken for a worse one
CLAIM_ERRORS: Final = 3.0
CLAIM_SLACK: Final = 0.1


@dataclass(frozen=True, slots=True)
class MeasuredSuccess:
    """A mean reward in 0 to 1, and of how many completions."""

    success: float
    completions: int

    @property
    def error(self) -> float:
        """The standard error; positive at 0 and 1 too."""
        smoothed = (self.success * self.completions + 1.0) / (self.completions + 2.0)
        return math.sqrt(smoothed * (1.0 - smoothed) / max(1, self.completions))


@dataclass(frozen=True, slots=True)
class StateVerdict:
    keep: bool
    because: str
    false_claims: tuple[str, ...]  # peers whose claim does not hold, whether the weights are kept or not


def judge_state(before: MeasuredSuccess, after: MeasuredSuccess, claims: Mapping[str, float]) -> StateVerdict:
    """Judges weights with success ``after``, on a node that had ``before``. ``claims`` are the successes that peers
    claimed of these very weights."""
    most = after.success + CLAIM_ERRORS * after.error + CLAIM_SLACK
    false_claims = tuple(peer for peer, claimed in claims.items() if claimed > most)
    found = f"success {after.success:.3f} measured here, {before.success:.3f} with our own weights"
    if claims and len(false_claims) == len(claims):
        return StateVerdict(False, f"{found}; claimed were {max(claims.values()):.3f}", false_claims)
    noise = math.hypot(before.error, after.error)
    keep = after.success > 0.0 and after.success >= before.success - NOISES * noise
    return StateVerdict(keep, found, false_claims)
