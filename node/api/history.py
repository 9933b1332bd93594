"""The run over time, for charts: from the events of the learner and the supervisor, those of earlier starts included.

At the start ``record.recorded_run`` fills it from ``metrics.jsonl``; events that arrive meanwhile are appended to it.
Memory is bounded (``series``), and so is every answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from node.api.series import Kind, Stretch, Track, downsampled, sample
from node.api.types import HistoryAnswer, Mark, Series, Timeline
from node.events import DeviceUsage, Evaluated, RoundDone, Usage

MAX_POINTS = 500
MAX_TASKS = 64  # the first ones in alphabetical order
MIN_INTERVAL_SECONDS = 1e-3  # between two reports from which a rate is computed


@dataclass(frozen=True, slots=True)
class _Charted:
    name: str
    unit: str
    kind: Kind
    of: Callable[[RoundDone], float | None]


ROUND_SERIES: tuple[_Charted, ...] = (
    _Charted("reward", "reward", "mean", lambda done: done.reward),
    _Charted("generated_tokens_per_second", "tokens/s", "mean", lambda done: done.tokens_per_second),
    _Charted("trained_tokens_per_second", "tokens/s", "mean", lambda done: trained_tokens_per_second(done)),
    _Charted("effective_sample_share", "share", "mean", lambda done: done.effective_sample_share),
    _Charted("staleness_versions", "versions", "mean", lambda done: done.staleness_mean),
    _Charted("policy_version", "versions", "last", lambda done: done.policy_version),
    _Charted("round", "rounds", "last", lambda done: done.round),
    _Charted("round_seconds", "s", "mean", lambda done: done.seconds),
    _Charted("loss", "loss", "mean", lambda done: done.loss),
    _Charted("entropy_nats", "nats", "mean", lambda done: done.entropy),
    _Charted("groups_shared", "groups/round", "mean", lambda done: done.groups_shared),
    _Charted("foreign_groups_used", "groups/round", "mean", lambda done: done.foreign_groups_used),
    _Charted("device_memory_bytes", "B", "max", lambda done: done.device_memory_bytes),
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


def trained_tokens_per_second(done: RoundDone) -> float | None:
    if done.trained_tokens_per_second is not None:
        return done.trained_tokens_per_second
    return done.tokens_trained / done.seconds if done.seconds > 0 else None


def _round_track() -> Track:
    return Track(ROUND_KINDS)


def _usage_track() -> Track:
    return Track(USAGE_KINDS)


def _evaluation_track() -> Track:
    return Track(EVALUATION_KINDS)


@dataclass(slots=True)
class History:
    """The series of one run. Not for concurrent use."""

    rounds: Track = field(default_factory=_round_track)
    usage: Track = field(default_factory=_usage_track)
    evaluations: Track = field(default_factory=_evaluation_track)
    is_restored: bool = False
    _usage_before: Usage | None = None

    @property
    def tracks(self) -> tuple[Track, Track, Track]:
        return self.rounds, self.usage, self.evaluations

    def add_round(self, done: RoundDone) -> None:
        values = {chart.name: value for chart in ROUND_SERIES if (value := chart.of(done)) is not None}
        for name, by_task in (("reward", done.reward_by_task), ("success", done.success_by_task)):
            values |= {f"{name}/{task}": value for task, value in sorted(by_task.items())[:MAX_TASKS]}
        self.rounds.add(sample(done.time_seconds, values))

    def add_evaluation(self, measured: Evaluated) -> None:
        values = {"reward": measured.reward, "round": float(measured.round)}
        values |= {f"reward/{task}": value for task, value in sorted(measured.reward_by_task.items())[:MAX_TASKS]}
        self.evaluations.add(sample(measured.time_seconds, values))

    def add_usage(self, usage: Usage) -> None:
        values: dict[str, float] = {}
        for process in ("learner", "swarm", "supervisor"):
            resident_bytes = getattr(usage, f"{process}_bytes")
            if resident_bytes is not None:
                values[f"{process}_memory_bytes"] = resident_bytes
        values |= _of_device(usage.device)
        values |= _rates(self._usage_before, usage)
        self._usage_before = usage
        self.usage.add(sample(usage.time_seconds, values))

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

    def excerpt(self, *, seconds: float = math.inf, marks: tuple[Mark, ...] = ()) -> Excerpt:
        """Returns the part of the history within the last ``seconds`` before the newest sample; ``marks`` are given to
        the answer as they are."""
        since_seconds = self.since_seconds(seconds)
        rounds, usage, evaluations = (track.since(since_seconds) for track in self.tracks)
        return Excerpt(rounds, usage, evaluations, self.is_restored, marks)

    def answer(self, *, points: int = MAX_POINTS, seconds: float = math.inf) -> HistoryAnswer:
        """Returns at most ``points`` a series, of the last ``seconds`` before the newest sample."""
        return self.excerpt(seconds=seconds).answer(points)


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A history at one moment. Making its answer takes a tenth of a second and may happen in a thread."""

    rounds: list[Stretch]
    usage: list[Stretch]
    evaluations: list[Stretch]
    is_restored: bool
    marks: tuple[Mark, ...] = ()

    def answer(self, points: int) -> HistoryAnswer:
        """Returns at most ``points`` a series."""
        rounds = downsampled(self.rounds, points, ROUND_KINDS)
        usage = downsampled(self.usage, points, USAGE_KINDS)
        evaluations = downsampled(self.evaluations, points, EVALUATION_KINDS)
        series = [_series(rounds, chart.name, chart.unit) for chart in ROUND_SERIES]
        of_evaluations = [_series(evaluations, "reward", "reward"), _series(evaluations, "round", "rounds")]
        return HistoryAnswer(
            Timeline(_ends(rounds), (*series, *_of_tasks(rounds))),
            Timeline(_ends(usage), tuple(_series(usage, name, unit) for name, unit, _ in USAGE_SERIES)),
            self.is_restored,
            Timeline(_ends(evaluations), (*of_evaluations, *_of_tasks(evaluations))),
            self.marks,
        )


def _of_device(device: DeviceUsage | None) -> dict[str, float]:
    if device is None:
        return {}
    figures = {
        "device_used_memory_bytes": device.memory_used_bytes,
        "device_utilization": device.utilization_share,
        "device_power_watts": device.power_watts,
    }
    return {name: float(value) for name, value in figures.items() if value is not None}


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
    keys = {name for stretch in stretches for name in stretch.values if "/" in name}
    parts = {key: key.partition("/") for key in sorted(keys)[: len(TASK_SERIES) * MAX_TASKS]}
    return [_series(stretches, key, "reward", name, task) for key, (name, _, task) in parts.items()]


def _series(stretches: list[Stretch], key: str, unit: str, name: str = "", task: str | None = None) -> Series:
    values = tuple(stretch.values.of(key) for stretch in stretches)
    return Series(name or key, unit, task, values)
