"""The facts of a run from its ``metrics.jsonl``: totals, averagings, faults and curves, over every recorded start.

The older half of a log that was cut is read first. Lines that do not decode, such as those of other versions, are
skipped and counted. Memory is bounded for a run of any length: curves are merged (``node.api.series``), lists keep
their newest entries.
"""

from __future__ import annotations

from collections import Counter, deque
from pathlib import Path

import msgspec
from msgspec import Struct

from node.api.gains import OWN
from node.api.history import Charted, History
from node.api.reasons import why_not
from node.api.record import events_in, halves
from node.api.run_changes import Change, RunChanges
from node.api.types import GainsAnswer, HistoryAnswer, Series, WhyNot, Withdrawal
from node.events import (
    Averaged,
    Evaluated,
    Fault,
    FoundRate,
    LearnerReady,
    OutOfMemory,
    RoundDone,
    StateSyncing,
    Stopped,
    Usage,
)
from protocol.errors import ConfigurationError, StorageError

MAX_LISTED = 50  # averagings, faults, and times that memory ran out; the newest are kept
MAX_PEERS_COUNTED = 10_000  # strangers may take as many names as they like

_Line = Change | Fault | OutOfMemory | Stopped | Usage
_decoder: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)


class Sharing(Struct, frozen=True):
    """Groups of rollouts over the whole run."""

    generated: int
    informative: int
    offered: int
    fetched: int
    used: int
    replayed: int
    fetched_bytes: int
    hints: int
    hints_right: int
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
    sharing: Sharing
    traffic: TrafficTotals
    averaged: tuple[Averaged, ...]  # with a partner
    averaged_total: int
    faults: tuple[Fault, ...]
    faults_total: int
    withdrawals: tuple[Withdrawal, ...]  # from which peers it learnt less for a while; no faults
    withdrawals_total: int
    out_of_memory: tuple[OutOfMemory, ...]
    out_of_memory_total: int
    ended_because: str | None  # None: the run has not ended, or not on purpose
    lines_passed_over: int
    gains: GainsAnswer  # with the losses; as a running node answers
    history: HistoryAnswer
    evaluated: Evaluated | None = None  # the last one
    evaluated_total: int = 0
    found_rate: FoundRate | None = None  # how the learning rate changed last

    @property
    def first_reward(self) -> dict[str, float]:
        """By task, smoothed, as in ``gains``."""
        return {task.task: task.first for task in self.gains.tasks}

    @property
    def last_reward(self) -> dict[str, float]:
        return {task.task: task.now for task in self.gains.tasks}

    def series(self, name: str, task: str | None = None) -> Series | None:
        """Returns a value by round, over the points of the history."""
        return next((each for each in self.history.rounds.series if (each.name, each.task) == (name, task)), None)

    @property
    def lasted_seconds(self) -> float:
        """Between the first and the last record."""
        return (self.ended_seconds or 0.0) - (self.began_seconds or 0.0)


class _Collected:
    def __init__(self) -> None:
        self.history, self.changes = History(), RunChanges()
        self.began_seconds: float | None = None
        self.ended_seconds: float | None = None
        self.ready: LearnerReady | None = None
        self.evaluated: Evaluated | None = None
        self.stopped: Stopped | None = None
        self.found_rate: FoundRate | None = None
        self.usage: Usage | None = None
        self.sums: Counter[str] = Counter()
        self.not_used: Counter[str] = Counter()
        self.peers: set[str] = set()
        self.averaged: deque[Averaged] = deque(maxlen=MAX_LISTED)
        self.faults: deque[Fault] = deque(maxlen=MAX_LISTED)
        self.out_of_memory: deque[OutOfMemory] = deque(maxlen=MAX_LISTED)

    def add(self, event: _Line) -> None:
        if self.began_seconds is None:
            self.began_seconds = event.time_seconds
        self.ended_seconds = event.time_seconds
        if isinstance(event, Change):
            self.changes.add(event)
        if isinstance(event, Charted):
            self.history.add(event)
        match event:
            case LearnerReady():
                self.ready, self.stopped = event, None
                self.sums["starts"] += 1
            case RoundDone():
                self._add_round(event)
            case Evaluated():
                self.evaluated = event
                self.sums["evaluated"] += 1
            case Averaged() if event.partner is not None:
                self.averaged.append(event)
                self.sums["averaged"] += 1
            case Fault():
                self.faults.append(event)
                self.sums["faults"] += 1
            case OutOfMemory():
                self.out_of_memory.append(event)
                self.sums["out of memory"] += 1
            case Stopped():
                self.stopped = event
            case Usage():
                before, self.usage = self.usage, event
                self.sums["sent"] += _grown(before.sent_bytes_total if before else None, event.sent_bytes_total)
                self.sums["received"] += _grown(
                    before.received_bytes_total if before else None, event.received_bytes_total
                )

    def _add_round(self, done: RoundDone) -> None:
        self.found_rate = done.found_rate
        self.not_used.update(done.foreign_rejected)
        if len(self.peers) < MAX_PEERS_COUNTED:
            self.peers.update(peer for peer in done.divergence_by_peer if peer != OWN)
        self.sums.update(
            generated=done.own_groups,
            informative=done.own_groups_informative,
            offered=done.groups_offered,
            fetched=done.foreign_fetched,
            used=done.foreign_groups_used,
            replayed=done.foreign_groups_replayed,
            fetched_bytes=done.bytes_fetched,
            hints=done.hints,
            hints_right=done.hints_right,
            foreign_completions=done.foreign_completions,
            tokens=done.tokens_generated,
            rounds=1,
        )

    def facts(self) -> RunFacts:
        ready, sums = self.ready, self.sums
        history = self.history.excerpt(marks=self.changes.marks.answer())()
        completions = sums["foreign_completions"]
        return RunFacts(
            model=ready.model_name if ready else None,
            family=ready.family if ready else None,
            parameters=ready.parameters if ready else None,
            device=f"{ready.device}, {ready.dtype}" if ready else None,
            starts=sums["starts"],
            began_seconds=self.began_seconds,
            ended_seconds=self.ended_seconds,
            rounds=sums["rounds"],
            tokens_generated=sums["tokens"],
            sharing=Sharing(
                generated=sums["generated"],
                informative=sums["informative"],
                offered=sums["offered"],
                fetched=sums["fetched"],
                used=sums["used"],
                replayed=sums["replayed"],
                fetched_bytes=sums["fetched_bytes"],
                hints=sums["hints"],
                hints_right=sums["hints_right"],
                bytes_per_foreign_completion=sums["fetched_bytes"] / completions if completions else None,
                not_used=why_not(self.not_used),
                peers=min(len(self.peers), MAX_PEERS_COUNTED),
            ),
            traffic=TrafficTotals(sums["sent"], sums["received"]),
            averaged=tuple(self.averaged),
            averaged_total=sums["averaged"],
            faults=tuple(self.faults),
            faults_total=sums["faults"],
            withdrawals=self.changes.withdrawals,
            withdrawals_total=self.changes.withdrawals_total,
            out_of_memory=tuple(self.out_of_memory),
            out_of_memory_total=sums["out of memory"],
            ended_because=self.stopped.because if self.stopped else None,
            lines_passed_over=sums["passed over"],
            history=history,
            evaluated=self.evaluated,
            evaluated_total=sums["evaluated"],
            gains=self.changes.gains(),
            found_rate=self.found_rate,
        )


def run_facts(metrics: Path, *, until_round: int | None = None) -> RunFacts:
    """Reads a run; with ``until_round`` only as far as that round, reports of memory and traffic included.

    Raises ``ConfigurationError`` where nothing was recorded, ``StorageError`` for a file that cannot be read.
    """
    found, beyond = _Collected(), False
    for path in halves(metrics):
        try:
            for event in events_in(path, _decoder):
                if event is None:
                    found.sums["passed over"] += 1
                    continue
                if until_round is not None and not isinstance(event, (StateSyncing, Usage)):
                    beyond = event.round > until_round  # and back where a restarted learner repeats rounds
                if not beyond:
                    found.add(event)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(f"{path} cannot be read ({error.strerror}): make it readable for you") from None
    if found.began_seconds is None:
        raise ConfigurationError(
            f"{metrics} records no run: name the node's data directory with --home, or start a node with starling up"
        )
    return found.facts()


def _grown(before: int | None, now: int | None) -> int:
    """Returns the increase since the report before. Each start of the swarm process resets the totals."""
    if now is None:
        return 0
    return now - before if before is not None and now >= before else now


def read_facts(path: Path) -> RunFacts:
    """Returns the facts that ``starling report --json`` printed. Raises ``ConfigurationError`` for anything else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunFacts)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError(
            f"{path} is no run: name expected:MODEL, a node's data directory, or a file that holds what "
            f"`starling report --json` printed ({error})"
        ) from None
