"""Decides whether the node trains now, and says why. Pure.

In this order: what the owner asked for (``starling pause``, ``starling resume --for``), the schedule, and what the
machine is used for. The first that has something to say decides.

One reading of the machine decides nothing: a compiler that runs for three seconds would stop a learner that takes a
minute to come back. A condition holds once it was met for ``BEGIN_SECONDS`` without a gap, and until it was not met for
``END_SECONDS`` without a gap. A reading that the system does not give changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import Final

from msgspec import Struct

from node.api.answers import ASKED_BY_OWNER
from node.configuration import MachineSection, PauseCondition

BEGIN_SECONDS: Final[Mapping[PauseCondition, float]] = {"load": 30.0, "gpu": 10.0, "battery": 0.0, "metered": 0.0}
END_SECONDS: Final[Mapping[PauseCondition, float]] = {"load": 180.0, "gpu": 180.0, "battery": 10.0, "metered": 30.0}


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the machine. None: this system does not tell."""

    load_share: float | None = None  # of all cores, used by programs that are not this node's
    gpu_share: float | None = None  # of the GPU that others use most
    gpu_program: str = ""  # that uses it most
    on_battery: bool | None = None
    metered: bool | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """What is known of one condition."""

    kind: PauseCondition
    text: str  # in words, from the last reading that met it
    met_since_seconds: float | None  # None while it is not met
    unmet_since_seconds: float | None = None
    holds: bool = False

    @property
    def until_seconds(self) -> float | None:
        """When it ceases to hold if it stays unmet; None while it is met."""
        return None if self.unmet_since_seconds is None else self.unmet_since_seconds + END_SECONDS[self.kind]


MachineUse = Mapping[PauseCondition, Condition]  # every condition that has been met lately


def met(reading: Reading, section: MachineSection) -> dict[PauseCondition, str | None]:
    """Returns for each condition that the system tells what meets it, in words, or None where nothing does."""
    told: dict[PauseCondition, str | None] = {}
    if reading.load_share is not None:
        busy = reading.load_share >= section.load_share
        told["load"] = f"other programs use {reading.load_share:.0%} of the processor" if busy else None
    if reading.gpu_share is not None:
        name = f" ({reading.gpu_program})" if reading.gpu_program else ""
        busy = reading.gpu_share >= section.gpu_share
        told["gpu"] = f"another program{name} uses {reading.gpu_share:.0%} of the GPU" if busy else None
    if reading.on_battery is not None:
        told["battery"] = "the machine runs on battery" if reading.on_battery else None
    if reading.metered is not None:
        told["metered"] = "the network connection is metered" if reading.metered else None
    return told


def next_use(before: MachineUse, now_seconds: float, told: Mapping[PauseCondition, str | None]) -> MachineUse:
    """Returns what is known after one more reading, ``met`` of it, at ``now_seconds``, Unix time."""
    after = {kind: _not_later_than(now_seconds, condition) for kind, condition in before.items()}
    for kind, text in told.items():
        condition = after.get(kind)
        if text is not None:
            met_before = condition.met_since_seconds if condition is not None else None
            since = now_seconds if met_before is None else met_before
            holds = (condition is not None and condition.holds) or now_seconds - since >= BEGIN_SECONDS[kind]
            after[kind] = Condition(kind, text, since, None, holds)
        elif condition is not None:
            since = now_seconds if condition.unmet_since_seconds is None else condition.unmet_since_seconds
            if condition.holds and now_seconds - since < END_SECONDS[kind]:
                after[kind] = replace(condition, met_since_seconds=None, unmet_since_seconds=since)
            else:
                del after[kind]
    return after


def _not_later_than(now_seconds: float, condition: Condition) -> Condition:
    """Returns the condition with times that lie ahead, because the clock was set back, as now."""
    met, unmet = condition.met_since_seconds, condition.unmet_since_seconds
    return replace(
        condition,
        met_since_seconds=None if met is None else min(met, now_seconds),
        unmet_since_seconds=None if unmet is None else min(unmet, now_seconds),
    )


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
