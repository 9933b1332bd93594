"""The run over time, for charts: from the events of the learner and the supervisor, those of earlier starts included.

At the start ``record.recorded_run`` fills it from ``metrics.jsonl``; events that arrive meanwhile are appended to it.
Memory is bounded (``series``), and so is every answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from node.api.series import Kind, Stretch, Track, downsampled, sample
from node.api.types import HistoryAnswer, Mark, Series, Timeline
from node.events import Evaluated, RoundDone, Usage

MAX_POINTS = 500
MAX_TASKS = 64  # the first ones in alphabetical order
MIN_INTERVAL_SECONDS = 1e-3  # between two reports from which a rate is computed


@dataclass(frozen=True, slots=True)
class _Chart:
    name: str
    unit: str
    kind: Kind
    of: Callable[[RoundDone], float | None]


ROUND_SERIES: tuple[_Chart, ...] = (
    _Chart("reward", "reward", "mean", lambda done: done.reward),
    _Chart("generated_tokens_per_second", "tokens/s", "mean", lambda done: done.tokens_per_second),
    _Chart("trained_tokens_per_second", "tokens/s", "mean", lambda done: done.trained_tokens_per_second),
    _Chart("effective_sample_share", "share", "mean", lambda done: done.effective_sample_share),
    _Chart("staleness_versions", "versions", "mean", lambda done: done.staleness_mean),
    _Chart("policy_version", "versions", "last", lambda done: done.policy_version),
    _Chart("round", "rounds", "last", lambda done: done.round),
    _Chart("round_seconds", "s", "mean", lambda done: done.seconds),
    _Chart("loss", "loss", "mean", lambda done: done.loss),
    _Chart("entropy_nats", "nats", "mean", lambda done: done.entropy),
    _Chart("groups_offered", "groups/round", "mean", lambda done: done.groups_offered),
    _Chart("foreign_groups_used", "groups/round", "mean", lambda done: done.foreign_groups_used),
    _Chart("device_memory_bytes", "B", "max", lambda done: done.device_memory_bytes),
)
TASK_SERIES = ("reward", "success")  # of each task: the mean of the round, and the running mean
USAGE_SERIES: tuple[tuple[str, str, Kind], ...] = (
    ("learner_memory_bytes", "B", "max"),
    ("swarm_memory_bytes", "B", "max"),
    ("supervisor_memory_bytes", "B", "max"),
    ("sent_bytes_per_second", "B/s", "mean"),
    ("received_bytes_per_second", "B/s", "mean"),
    ("device_used_memory_bytes", "B", "max"),  # of the GPU, by every program
    ("device_utilization", "share", "mean"),
    ("device_power_watts", "W", "mean"),
)
EVALUATION_KINDS: Mapping[str, Kind] = {"round": "last"}
ROUND_KINDS: Mapping[str, Kind] = {chart.name: chart.kind for chart in ROUND_SERIES}
USAGE_KINDS: Mapping[str, Kind] = {name: kind for name, _, kind in USAGE_SERIES}

Charted = RoundDone | Evaluated | Usage  # what the charts are made of
Gaps = tuple[tuple[float, float], ...]  # Unix times


@dataclass(slots=True)
class History:
    """The series of one run. Not for concurrent use."""

    rounds: Track = field(default_factory=partial(Track, ROUND_KINDS))
    usage: Track = field(default_factory=partial(Track, USAGE_KINDS))
    evaluations: Track = field(default_factory=partial(Track, EVALUATION_KINDS))
    is_restored: bool = False
    _usage_before: Usage | None = None

    @property
    def tracks(self) -> tuple[Track, Track, Track]:
        return self.rounds, self.usage, self.evaluations

    def add(self, event: Charted) -> None:
        match event:
            case RoundDone():
                self.add_round(event)
            case Evaluated():
                self.add_evaluation(event)
            case Usage():
                self.add_usage(event)

    def add_round(self, done: RoundDone) -> None:
        values = {chart.name: value for chart in ROUND_SERIES if (value := chart.of(done)) is not None}
        for name, by_task in (("reward", done.reward_by_task), ("success", done.success_by_task)):
            values |= {f"{name}/{task}": value for task, value in sorted(by_task.items())[:MAX_TASKS]}
        self.rounds.add(sample(done.time_seconds, values, took_seconds=done.seconds))

    def add_evaluation(self, measured: Evaluated) -> None:
        values = {"reward": measured.reward, "round": float(measured.round)}
        values |= {f"reward/{task}": value for task, value in sorted(measured.reward_by_task.items())[:MAX_TASKS]}
        self.evaluations.add(sample(measured.time_seconds, values))
        self.rounds.busy_until(measured.time_seconds)

    def add_usage(self, usage: Usage) -> None:
        device = usage.device
        figures = {
            "learner_memory_bytes": usage.learner_bytes,
            "swarm_memory_bytes": usage.swarm_bytes,
            "supervisor_memory_bytes": usage.supervisor_bytes,
            "device_used_memory_bytes": device.memory_used_bytes if device is not None else None,
            "device_utilization": device.utilization_share if device is not None else None,
            "device_power_watts": device.power_watts if device is not None else None,
        }
        known = {name: float(value) for name, value in figures.items() if value is not None}
        self.usage.add(sample(usage.time_seconds, known | _rates(self._usage_before, usage)))
        self._usage_before = usage

    def appended_to(self, earlier: History) -> History:
        """Appends this history's samples to ``earlier``, marks it as restored and returns it. This history must still
        have all its samples one by one."""
        for kept, track in zip(earlier.tracks, self.tracks, strict=True):
            for stretch in track.recent:
                kept.add(stretch)
        earlier._usage_before = self._usage_before or earlier._usage_before
        earlier.is_restored = True
        return earlier

    def since_seconds(self, seconds: float) -> float:
        """Returns the Unix time that lies ``seconds`` before the newest sample."""
        newest = [track.recent[-1].ended_seconds for track in self.tracks if track.recent]
        return max(newest, default=0.0) - seconds

    def excerpt(
        self, *, points: int = MAX_POINTS, seconds: float = math.inf, marks: tuple[Mark, ...] = ()
    ) -> Callable[[], HistoryAnswer]:
        """Returns what makes the answer of this moment, which takes a tenth of a second and may happen in a thread: at
        most ``points`` a series, of the last ``seconds`` before the newest sample, and ``marks`` as they are."""
        since_seconds = self.since_seconds(seconds)
        tracks = [(track.since(since_seconds), track.kinds) for track in self.tracks]
        gaps = self.rounds.gaps(since_seconds), self.usage.gaps(since_seconds)
        return partial(_answer, tracks, gaps, points, self.is_restored, marks)

    def answer(self, *, points: int = MAX_POINTS, seconds: float = math.inf) -> HistoryAnswer:
        """Returns at most ``points`` a series, of the last ``seconds`` before the newest sample."""
        return self.excerpt(points=points, seconds=seconds)()


def _answer(
    tracks: Sequence[tuple[list[Stretch], Mapping[str, Kind]]],
    gaps: tuple[Gaps, Gaps],
    points: int,
    is_restored: bool,
    marks: tuple[Mark, ...],
) -> HistoryAnswer:
    rounds, usage, evaluations = (downsampled(stretches, points, kinds) for stretches, kinds in tracks)
    series = [_series(rounds, chart.name, chart.unit) for chart in ROUND_SERIES]
    of_evaluations = [_series(evaluations, "reward", "reward"), _series(evaluations, "round", "rounds")]
    return HistoryAnswer(
        Timeline(_ends(rounds), (*series, *_of_tasks(rounds)), gaps[0]),
        Timeline(_ends(usage), tuple(_series(usage, name, unit) for name, unit, _ in USAGE_SERIES), gaps[1]),
        is_restored,
        Timeline(_ends(evaluations), (*of_evaluations, *_of_tasks(evaluations)), gaps[0]),
        marks,
    )


def _rates(before: Usage | None, now: Usage) -> dict[str, float]:
    """Returns bytes a second between two reports; none across a restart of the swarm process, which resets totals."""
    if before is None or now.time_seconds - before.time_seconds < MIN_INTERVAL_SECONDS:
        return {}
    elapsed_seconds = now.time_seconds - before.time_seconds
    rates = {}
    for name in ("sent", "received"):
        earlier, later = getattr(before, f"{name}_bytes_total"), getattr(now, f"{name}_bytes_total")
        if earlier is not None and later is not None and later >= earlier:
            rates[f"{name}_bytes_per_second"] = (later - earlier) / elapsed_seconds
    return rates


def _ends(stretches: list[Stretch]) -> tuple[float, ...]:
    return tuple(stretch.ended_seconds for stretch in stretches)


def _of_tasks(stretches: list[Stretch]) -> list[Series]:
    """Returns the series that exist once for each task."""
    keys = {name for stretch in stretches for name in stretch.values.names if "/" in name}
    parts = {key: key.partition("/") for key in sorted(keys)[: len(TASK_SERIES) * MAX_TASKS]}
    return [_series(stretches, key, "reward", name, task) for key, (name, _, task) in parts.items()]


def _series(stretches: list[Stretch], key: str, unit: str, name: str = "", task: str | None = None) -> Series:
    values = tuple(stretch.values.of(key) for stretch in stretches)
    return Series(name or key, unit, task, values)
