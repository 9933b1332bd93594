"""Decides whether the node trains now, and says why. Pure.

In this order: what the owner asked for (``starling pause``, ``starling resume --for``), the schedule, and what the
machine is used for. The first that has something to say decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo

from msgspec import Struct

from node.api.answers import ASKED_BY_OWNER
from node.configuration import MachineSection
from node.supervision.pausing.machine_use import MachineUse


class Order(Struct, frozen=True):
    """What the owner asked for. Times are Unix seconds."""

    run: bool  # False: pause
    since_seconds: float
    until_seconds: float | None = None  # None: until the owner says otherwise

    def holds(self, now_seconds: float) -> bool:
        return self.until_seconds is None or now_seconds < self.until_seconds


@dataclass(frozen=True, slots=True)
class PauseDecision:
    run: bool
    because: str  # in words; empty where it trains because nothing is against it
    until_seconds: float | None  # when this ends by itself; None where that is not known
    cause: str = ""  # "owner", "schedule", or the condition of the machine's use: the same while only the words change


def decide(
    now_seconds: float, use: MachineUse, order: Order | None, section: MachineSection, zone: tzinfo | None = None
) -> PauseDecision:
    """Decides for ``now_seconds``, Unix time. ``zone`` is that of the schedule; None is this machine's."""
    if order is not None and order.holds(now_seconds):
        because = "asked by its owner to train now" if order.run else ASKED_BY_OWNER
        return PauseDecision(order.run, because, order.until_seconds, "owner")
    schedule = section.hours
    within, changes_seconds = schedule.at(now_seconds, zone)
    if not within:
        return PauseDecision(False, f"outside its schedule, {schedule.text}", changes_seconds, "schedule")
    for condition in use.values():
        if condition.holds and condition.kind in section.pause_when:
            return PauseDecision(False, condition.text, condition.until_seconds, condition.kind)
    if changes_seconds is None:
        return PauseDecision(True, "", None)
    return PauseDecision(True, f"within its schedule, {schedule.text}", changes_seconds, "schedule")
