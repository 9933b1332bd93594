"""What trackers get of a run: numbers by name, from the events of rounds, evaluations and averagings.

Names have a group before the slash, as the pages of trackers show them: "round/loss", "reward/TASK", "held-out/TASK".
Nothing that strangers chose becomes a name; texts and figures of single peers stay in ``metrics.jsonl``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from node.configuration import TrackerName
from node.events import Averaged, Evaluated, Event, RoundDone

MAX_TASKS: Final = 128  # of one event; the first ones in alphabetical order
_LEFT_OUT: Final = frozenset({"round", "time_seconds", "best_round", "prompts"})


class TrackedRun(Struct, frozen=True):
    """The first line to a tracker's process."""

    tracker: TrackerName
    home: str  # the data directory
    name: str  # of the node
    config: dict[str, Any]  # what shapes the weights, without addresses and folders


class Record(Struct, frozen=True):
    """Every further line."""

    round: int
    time_seconds: float  # Unix time
    numbers: dict[str, float]  # finite


def record_of(event: Event) -> Record | None:
    """Returns the numbers of an event; None for one that trackers do not get."""
    match event:
        case RoundDone():
            phases = msgspec.structs.asdict(event.phases)
            found = _plain("round", event) | {f"seconds/{phase}": seconds for phase, seconds in phases.items()}
            found |= _tasks("reward", event.reward_by_task) | _tasks("success", event.success_by_task)
        case Evaluated():
            found = _plain("held-out", event) | _tasks("held-out", event.reward_by_task)
        case Averaged() if event.partner is not None:
            found = _plain("averaging", event)
        case _:
            return None
    return Record(
        event.round, event.time_seconds, {name: value for name, value in found.items() if math.isfinite(value)}
    )


def _plain(group: str, event: Struct) -> dict[str, float]:
    """Returns the fields that are numbers."""
    return {
        f"{group}/{name}": float(value)
        for name, value in msgspec.structs.asdict(event).items()
        if isinstance(value, int | float) and name not in _LEFT_OUT
    }


def _tasks(group: str, by_task: Mapping[str, float]) -> dict[str, float]:
    return {f"{group}/{task}": value for task, value in sorted(by_task.items())[:MAX_TASKS]}
