"""The facts of a run from its ``metrics.jsonl``: totals, averagings, faults and curves, over every recorded start.

The older half of a log that was cut is read first. Lines that do not decode, such as those of other versions, are
skipped and counted. Memory is bounded for a run of any length: curves are merged (``node.api.series``), lists keep
their newest entries.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from node.api.history import MAX_POINTS, History
from node.api.reasons import why_not
from node.api.run_changes import GroupsByPeer, RunChanges
from node.api.types import GainsAnswer, HistoryAnswer, WhyNot
from node.events import (
    Averaged,
    AveragingTakenBack,
    CheckpointSaved,
    Evaluated,
    Fault,
    LearnerReady,
    OutOfMemory,
    PeersChanged,
    RoundDone,
    StateSyncing,
    Stopped,
    Usage,
)
from protocol.errors import ConfigurationError, StorageError

MAX_LISTED = 50  # averagings, faults, and times that memory ran out; the newest are kept
OWN = "self"  # among the peers of ``RoundDone.divergence_by_peer``
MAX_PEERS_COUNTED = 10_000  # strangers may take as many names as they like

_Line = (
    LearnerReady
    | RoundDone
    | GroupsByPeer
    | Evaluated
    | PeersChanged
    | Averaged
    | AveragingTakenBack
    | CheckpointSaved
    | Fault
    | OutOfMemory
    | StateSyncing
    | Stopped
    | Usage
)
_TAGS = tuple(f'{{"event":"{t.__struct_config__.tag}"'.encode() for t in _Line.__args__)


class Sharing(Struct, frozen=True):
    """Groups of rollouts over the whole run."""

    generated: int
    informative: int
    shared: int
    fetched: int
    used: int
    replayed: int
    fetched_bytes: int
    bytes_per_foreign_completion: float | None
    not_used: tuple[WhyNot, ...]
    peers: int = 0  # whose completions were learnt from; at most ``MAX_PEERS_COUNTED``


class TrafficTotals(Struct, frozen=True):
    """Bytes of the swarm process over all its starts."""

    sent_bytes: int
    received_bytes: int


class RunFacts(Struct, frozen=True):
    """One run, for a page or a program. A value that the run did not record is null."""

    model: str | None
    family: str | None  # hex
    parameters: int | None
    device: str | None
    starts: int
    began_seconds: float | None  # Unix time
    ended_seconds: float | None
    rounds: int
    tokens_generated: int
    first_reward: dict[str, float]  # by task: the mean over the first tenth of the rounds recorded
    last_reward: dict[str, float]  # by task: the mean over the last tenth
    sharing: Sharing
    traffic: TrafficTotals
    averaged: tuple[Averaged, ...]  # with a partner
    averaged_total: int
    faults: tuple[Fault, ...]
    faults_total: int
    out_of_memory: tuple[OutOfMemory, ...]
    out_of_memory_total: int
    ended_because: str | None  # None: the run has not ended, or not on purpose
    lines_passed_over: int
    history: HistoryAnswer
    evaluated: Evaluated | None = None  # the last one
    evaluated_total: int = 0
    gains: GainsAnswer | None = None  # with the losses; as a running node answers


class _Collected:
    def __init__(self) -> None:
        self.history, self.changes = History(), RunChanges()
        self.ready: LearnerReady | None = None
        self.starts = self.passed_over = self.averaged_total = self.faults_total = self.evaluated_total = 0
        self.out_of_memory_total = 0
        self.evaluated: Evaluated | None = None
        self.peers: set[str] = set()
        self.first_seconds: float | None = None
        self.last_seconds: float | None = None
        self.last_round: RoundDone | None = None
        self.stopped: Stopped | None = None
        self.sums: Counter[str] = Counter()
        self.not_used: Counter[str] = Counter()
        self.averaged: deque[Averaged] = deque(maxlen=MAX_LISTED)
        self.faults: deque[Fault] = deque(maxlen=MAX_LISTED)
        self.out_of_memory: deque[OutOfMemory] = deque(maxlen=MAX_LISTED)
        self.usage: Usage | None = None
        self.sent_bytes = self.received_bytes = 0

    def add(self, event: _Line) -> None:
        if self.first_seconds is None:
            self.first_seconds = event.time_seconds
        self.last_seconds = event.time_seconds
        if not isinstance(event, (Fault, OutOfMemory, Stopped, Usage)):
            self.changes.add(event)
        match event:
            case LearnerReady():
                self.ready, self.starts, self.stopped = event, self.starts + 1, None
            case RoundDone():
                self._add_round(event)
            case Evaluated():
                self.evaluated, self.evaluated_total = event, self.evaluated_total + 1
                self.history.add_evaluation(event)
            case Averaged() if event.partner is not None:
                self.averaged_total += 1
                self.averaged.append(event)
            case Fault():
                self.faults_total += 1
                self.faults.append(event)
            case OutOfMemory():
                self.out_of_memory_total += 1
                self.out_of_memory.append(event)
            case Stopped():
                self.stopped = event
            case Usage():
                self._add_usage(event)

    def _add_round(self, done: RoundDone) -> None:
        self.last_round = done
        self.history.add_round(done)
        self.not_used.update(done.foreign_rejected)
        if len(self.peers) < MAX_PEERS_COUNTED:
            self.peers.update(peer for peer in done.divergence_by_peer if peer != OWN)
        self.sums.update(
            generated=done.own_groups,
            informative=done.own_groups_informative,
            shared=done.groups_shared,
            fetched=done.foreign_fetched,
            used=done.foreign_groups_used,
            replayed=done.foreign_groups_replayed,
            fetched_bytes=done.bytes_fetched,
            foreign_completions=done.foreign_completions,
            tokens=done.tokens_generated,
            rounds=1,
        )

    def _add_usage(self, usage: Usage) -> None:
        self.history.add_usage(usage)
        before = self.usage
        self.sent_bytes += _grown(before.sent_bytes_total if before else None, usage.sent_bytes_total)
        self.received_bytes += _grown(before.received_bytes_total if before else None, usage.received_bytes_total)
        self.usage = usage


def run_facts(metrics: Path, *, until_round: int | None = None) -> RunFacts:
    """Reads a run; with ``until_round`` only as far as that round, reports of memory and traffic included.

    Raises ``ConfigurationError`` where nothing was recorded, ``StorageError`` for a file that cannot be read.
    """
    found = _Collected()
    read = beyond = False
    for path in (metrics.with_name(metrics.name + ".1"), metrics):
        try:
            for event in _events(path, found):
                if until_round is not None and not isinstance(event, (StateSyncing, Usage)):
                    beyond = event.round > until_round  # and back where a restarted learner repeats rounds
                if not beyond:
                    found.add(event)
            read = True
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(f"{path} cannot be read ({error.strerror}): make it readable for you") from None
    if not read or found.first_seconds is None:
        raise ConfigurationError(
            f"{metrics} records no run: name the node's data directory with --home, or start a node with starling up"
        )
    return _facts(found)


def _facts(found: _Collected) -> RunFacts:
    ready, sums = found.ready, found.sums
    history = found.history.excerpt(marks=found.changes.marks.answer()).answer(MAX_POINTS)
    first, last = _ends_of_curves(history)
    completions = sums["foreign_completions"]
    return RunFacts(
        model=ready.model_name if ready else None,
        family=ready.family if ready else None,
        parameters=ready.parameters if ready else None,
        device=f"{ready.device}, {ready.dtype}" if ready else None,
        starts=found.starts,
        began_seconds=found.first_seconds,
        ended_seconds=found.last_seconds,
        rounds=sums["rounds"],
        tokens_generated=sums["tokens"],
        first_reward=first,
        last_reward=last,
        sharing=Sharing(
            generated=sums["generated"],
            informative=sums["informative"],
            shared=sums["shared"],
            fetched=sums["fetched"],
            used=sums["used"],
            replayed=sums["replayed"],
            fetched_bytes=sums["fetched_bytes"],
            bytes_per_foreign_completion=sums["fetched_bytes"] / completions if completions else None,
            not_used=why_not(found.not_used),
            peers=min(len(found.peers), MAX_PEERS_COUNTED),
        ),
        traffic=TrafficTotals(found.sent_bytes, found.received_bytes),
        averaged=tuple(found.averaged),
        averaged_total=found.averaged_total,
        faults=tuple(found.faults),
        faults_total=found.faults_total,
        out_of_memory=tuple(found.out_of_memory),
        out_of_memory_total=found.out_of_memory_total,
        ended_because=found.stopped.because if found.stopped else None,
        lines_passed_over=found.passed_over,
        history=history,
        evaluated=found.evaluated,
        evaluated_total=found.evaluated_total,
        gains=found.changes.gains(),
    )


def _ends_of_curves(history: HistoryAnswer) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the mean reward by task over the first and over the last tenth of the curve's points."""
    first, last = {}, {}
    for series in history.rounds.series:
        values = [value for value in series.values if value is not None]
        if series.name == "reward" and series.task is not None and values:
            tenth = max(1, len(values) // 10)
            first[series.task] = sum(values[:tenth]) / tenth
            last[series.task] = sum(values[-tenth:]) / tenth
    return first, last


def _grown(before: int | None, now: int | None) -> int:
    """Returns the increase since the report before. Each start of the swarm process resets the totals."""
    if now is None:
        return 0
    return now - before if before is not None and now >= before else now


def _events(path: Path, found: _Collected) -> Iterator[_Line]:
    decoder = msgspec.json.Decoder(_Line)
    with path.open("rb") as file:
        for line in file:
            if line.startswith(_TAGS):
                try:
                    yield decoder.decode(line)
                except msgspec.DecodeError:  # written by another version, or cut short by a full disk
                    found.passed_over += 1
