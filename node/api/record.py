"""What the supervisor keeps of a run for the API: rollouts, history and changes, filled by events as they arrive.

At the start ``recorded_run`` reads what earlier starts recorded, in a thread; events that arrive meanwhile are added to
it afterwards, so that nothing is missing and nothing is counted twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from node.api.history import History
from node.api.rollout_history import RolloutHistory
from node.api.run_changes import Change, GroupsByPeer, RunChanges
from node.api.types import Loss
from node.events import (
    Averaged,
    AveragingTakenBack,
    CheckpointSaved,
    Evaluated,
    Event,
    ForeignGroups,
    LearnerReady,
    PeersChanged,
    RoundDone,
    Samples,
    StateSyncing,
    Usage,
)

MAX_WAITING = 4096  # events of this start, kept until what was recorded before has been read

log = logging.getLogger(__name__)

_Recorded = (
    RoundDone
    | GroupsByPeer
    | Evaluated
    | Usage
    | PeersChanged
    | CheckpointSaved
    | Averaged
    | AveragingTakenBack
    | LearnerReady
    | StateSyncing
)  # ``Change``, with usage, and of foreign groups their counts alone
_TAGS = tuple(f'{{"event":"{each.__struct_config__.tag}"'.encode() for each in _Recorded.__args__)


class RunRecord:
    """Bounded in memory for a run of any length. For one thread."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        """``settings``: the resolved configuration that the run was started with, as JSON."""
        self.settings: Final = dict(settings or {})
        self.rollouts = RolloutHistory()
        self.history = History()
        self.changes = RunChanges()
        self.samples: Samples | None = None  # the newest with own answers
        self.learnt_from: Samples | None = None  # the newest with a peer's
        self._waiting: list[Change] | None = []

    def add(self, event: Event | Usage | PeersChanged) -> tuple[Loss, ...]:
        """Takes one event and returns the losses that it showed for the first time."""
        match event:
            case Usage():
                self.history.add_usage(event)
            case Samples():
                self.samples = event if event.ours is not None else self.samples
                self.learnt_from = event if event.learnt_from is not None else self.learnt_from
            case RoundDone():
                self.rollouts.add_round(event)
                self.history.add_round(event)
            case ForeignGroups():
                self.rollouts.add_groups(event)
            case Evaluated():
                self.history.add_evaluation(event)
            case _:
                pass
        if not isinstance(event, Change):
            return ()
        if self._waiting is not None and len(self._waiting) < MAX_WAITING:
            self._waiting.append(event)
        return self.changes.add(event)

    def restore(self, history: History, changes: RunChanges) -> None:
        """Puts what earlier starts recorded before the events of this one. Called once."""
        self.history = self.history.appended_to(history)
        for event in self._waiting or ():
            changes.add(event)
        self.changes, self._waiting = changes, None


def recorded_line(line: bytes, event: Event) -> bytes:
    """Returns what ``metrics.jsonl`` keeps of an event; ``line`` is its JSON. Of groups of others it keeps counts: one
    by one they would be half of all bytes, and nothing reads them again."""
    if isinstance(event, ForeignGroups):
        return msgspec.json.encode(GroupsByPeer.of(event))
    return line


def recorded_run(metrics: Path, *, before_seconds: float) -> tuple[History, RunChanges]:
    """Returns history and changes before that Unix time, read from ``metrics`` and its older half. Lines that do not
    decode, such as those of other versions, are skipped."""
    history, changes = History(), RunChanges()
    for path in (metrics.with_name(metrics.name + ".1"), metrics):
        try:
            for event in _events(path):
                if event.time_seconds >= before_seconds:
                    continue  # an event of this start, which the current record has
                match event:
                    case RoundDone():
                        history.add_round(event)
                    case Evaluated():
                        history.add_evaluation(event)
                    case Usage():
                        history.add_usage(event)
                        continue
                changes.add(event)
        except FileNotFoundError:
            pass  # this is the first start, or there is no older half yet
        except OSError as error:
            log.warning("charts begin with this start: %s cannot be read (%s)", path, error.strerror)
    return history, changes


def _events(path: Path) -> Iterator[_Recorded]:
    decoder = msgspec.json.Decoder(_Recorded)
    with path.open("rb") as file:
        for line in file:
            if line.startswith(_TAGS):
                try:
                    yield decoder.decode(line)
                except msgspec.DecodeError:  # written by another version, or cut short by a full disk
                    continue
