"""Charts: merging loses no sample, answers are bounded, and recorded rounds are restored."""

from __future__ import annotations

import math
import tracemalloc
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.api import series
from node.api.history import MAX_POINTS, MAX_TASKS, History
from node.api.record import RunRecord, recorded_run
from node.api.series import Kind, Stretch, Track, downsampled, merge, sample
from node.api.types import HistoryAnswer
from node.events import Evaluated, RoundDone, Usage, encode_event
from tests.examples import examples
from tests.factories import round_done

KINDS: dict[str, Kind] = {"mean": "mean", "last": "last", "max": "max"}
EVALUATED = Evaluated(
    time_seconds=500.0, round=1, policy_version=1, prompts=8, reward=0.5, reward_by_task={}, validation=0.5,
    best_round=1, best_reward=0.5, seconds=480.0,
)  # fmt: skip
values = st.dictionaries(st.sampled_from(["mean", "last", "max", "other"]), st.floats(-1e6, 1e6))
runs = st.lists(values, min_size=1, max_size=60).map(
    lambda run: [sample(float(at), each) for at, each in enumerate(run)]
)


def round_of(number: int, *, time_seconds: float | None = None, tasks: tuple[str, ...] = ("add",)) -> RoundDone:
    return round_done(
        number,
        time_seconds=float(number) if time_seconds is None else time_seconds,
        reward=number / 1000,
        reward_by_task=dict.fromkeys(tasks, 0.25),
        success_by_task=dict.fromkeys(tasks, 0.5),
        loss=0.5 if number % 2 else None,
        trained_tokens_per_second=120.0,
    )


def usage(at_seconds: float, sent: int | None, received: int | None = 0, learner: int | None = 5) -> Usage:
    return Usage(
        time_seconds=at_seconds,
        supervisor_bytes=1,
        learner_bytes=learner,
        swarm_bytes=3,
        sent_bytes_total=sent,
        received_bytes_total=received,
    )


def total(stretches: list[Stretch], name: str) -> tuple[float, int]:
    found = [entry for stretch in stretches for entry in stretch.values.entries() if entry[0] == name]
    return math.fsum(value * count for _, value, count in found), sum(count for *_, count in found)


@given(runs, st.integers(1, 70))
def test_downsampling_keeps_order_and_times_and_counts_every_sample_once(run: list[Stretch], points: int) -> None:
    few = downsampled(run, points, KINDS)
    assert len(few) == min(points, len(run))
    assert few[0].began_seconds == run[0].began_seconds and few[-1].ended_seconds == run[-1].ended_seconds
    assert all(a.ended_seconds < b.began_seconds for a, b in pairwise(few))
    for name in ("mean", "other"):
        assert total(few, name)[1] == total(run, name)[1]
        assert total(few, name)[0] == pytest.approx(total(run, name)[0], rel=1e-9, abs=1e-3)


@given(runs)
def test_all_of_a_run_as_one_has_the_mean_the_last_and_the_greatest(run: list[Stretch]) -> None:
    whole = merge(run, KINDS)
    for name in ("mean", "last", "max"):
        seen = [value for stretch in run if (value := stretch.values.of(name)) is not None]
        if not seen:
            assert name not in whole.values.names
            continue
        expected = {"mean": math.fsum(seen) / len(seen), "last": seen[-1], "max": max(seen)}[name]
        value, count = whole.values.of(name), total([whole], name)[1]
        assert value == pytest.approx(expected, rel=1e-9, abs=1e-6) and count == len(seen)


@given(runs, st.integers(1, 20))
def test_values_stay_within_what_was_measured(run: list[Stretch], points: int) -> None:
    for stretch in downsampled(run, points, KINDS):
        for name, value, _ in stretch.values.entries():
            seen = [found for each in run if (found := each.values.of(name)) is not None]
            assert min(seen) - 1e-6 <= value <= max(seen) + 1e-6


def test_a_track_of_any_length_keeps_its_newest_samples_and_the_whole_in_bounded_memory() -> None:
    track = Track({"last": "last"})
    for at in range(20_000):
        track.add(sample(float(at), {"mean": float(at), "last": float(at)}))
    whole = track.since(-math.inf)
    assert len(track.recent) == series.MAX_RECENT_SAMPLES and len(whole) <= series.MAX_STRETCHES + 1
    value, count = total(whole, "mean")
    assert value == pytest.approx(20_000 * 19_999 / 2) and count == 20_000
    assert whole[-1].values.of("last") == 19_999.0
    newest = track.since(19_900.0)
    assert [stretch.values.of("mean") for stretch in newest] == [float(at) for at in range(19_900, 20_000)]
    assert track.since(25_000.0) == []


def test_an_answer_has_at_most_the_points_asked_for_and_every_series_is_as_long_as_its_times() -> None:
    history = History()
    for number in range(1, 2001):
        history.add_round(round_of(number, tasks=("add", "sort/twice")))
    for points in (2, 100, MAX_POINTS):
        answer = history.answer(points=points)
        assert len(answer.rounds.time_seconds) == points
        assert all(len(each.values) == points for each in answer.rounds.series)
        assert answer.rounds.time_seconds[-1] == 2000.0
    named = {(each.name, each.task): each for each in answer.rounds.series}
    assert {task for name, task in named if name == "reward"} == {None, "add", "sort/twice"}
    assert named["policy_version", None].values[-1] == 2000.0
    assert named["trained_tokens_per_second", None].values[0] == 120.0
    assert named["success", "add"].values[0] == 0.5 and named["entropy_nats", None].values[0] is None
    assert msgspec.json.decode(msgspec.json.encode(answer), type=HistoryAnswer) == answer


def test_the_last_seconds_are_answered_round_by_round() -> None:
    history = History()
    for number in range(1, 5001):
        history.add_round(round_of(number))
    answer = history.answer(seconds=9.5)
    assert answer.rounds.time_seconds == tuple(map(float, range(4991, 5001)))


def test_traffic_is_a_rate_and_has_a_gap_at_a_restart_of_the_swarm_process() -> None:
    history = History()
    for report in (usage(0, 1000), usage(10, 3000, 500), usage(20, 40), usage(30, None, None), usage(40, 90)):
        history.add_usage(report)
    named = {each.name: each.values for each in history.answer().usage.series}
    assert named["sent_bytes_per_second"] == (None, 200.0, None, None, None)
    assert named["received_bytes_per_second"] == (None, 50.0, None, None, None)
    assert named["learner_memory_bytes"] == (5, 5, 5, 5, 5)


def test_time_in_which_no_round_ran_is_a_gap_across_a_restart_too() -> None:
    def rounds(first: int, began_seconds: float) -> History:
        history = History()
        for number in range(first, first + 20):
            history.add_round(round_done(number, time_seconds=began_seconds + 10.0 * (number - first), seconds=9.0))
        return history

    stopped, resumed = 190.0, 5000.0
    answer = rounds(21, resumed).appended_to(rounds(1, 0.0)).answer(points=3)
    assert answer.rounds.gaps == answer.evaluations.gaps == ((stopped, resumed - 9.0),)
    assert answer.usage.gaps == () and rounds(1, 0.0).answer().rounds.gaps == ()
    assert rounds(21, resumed).appended_to(rounds(1, 0.0)).answer(seconds=60.0).rounds.gaps == ()


def test_time_spent_on_held_out_prompts_and_slow_rounds_are_no_gaps_and_gaps_are_bounded() -> None:
    history = History()
    history.add_round(round_done(1, time_seconds=10.0, seconds=9.0))
    history.add_evaluation(EVALUATED)
    history.add_round(round_done(2, time_seconds=EVALUATED.time_seconds + 10.0, seconds=9.0))
    history.add_round(round_done(3, time_seconds=EVALUATED.time_seconds + 3000.0, seconds=2985.0))
    assert history.answer().rounds.gaps == ()
    track = Track()
    for number in range(2 * series.MAX_GAPS):
        track.add(sample(1000.0 * number * number, {}))
    gaps = track.gaps()
    assert len(gaps) == series.MAX_GAPS and gaps == tuple(sorted(gaps))


def test_a_process_that_does_not_run_leaves_a_gap() -> None:
    history = History()
    history.add_usage(usage(0, 0, learner=None))
    assert {each.name: each.values for each in history.answer().usage.series}["learner_memory_bytes"] == (None,)


def test_a_long_history_of_many_tasks_takes_few_megabytes() -> None:
    tasks = tuple(f"a task with a rather long name, number {number}" for number in range(MAX_TASKS))
    history = History()
    tracemalloc.start()
    try:
        for number in range(series.MAX_STRETCHES - 1):
            history.add_round(round_of(number, tasks=tasks))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 16 * (2 * MAX_TASKS + 20) * (series.MAX_STRETCHES + series.MAX_RECENT_SAMPLES)


def test_an_empty_history_is_an_answer_too() -> None:
    answer = History().answer()
    assert answer.rounds.time_seconds == () and not answer.restored
    assert all(each.values == () for each in (*answer.rounds.series, *answer.usage.series))


def test_what_was_recorded_comes_back_older_half_first_and_lines_of_other_versions_do_not(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    older = [encode_event(round_of(number)) for number in (1, 2)]
    newer = [
        b'{"event":"round","time_seconds":2.5}',
        msgspec.json.encode(usage(2.7, 100)),
        encode_event(round_of(3)),
        b'{"event":"fault"}',
        b'{"event":"round","ti',
        encode_event(round_of(9)),
    ]
    metrics.with_name("metrics.jsonl.1").write_bytes(b"\n".join(older) + b"\n")
    metrics.write_bytes(b"\n".join(newer))
    history = recorded_run(metrics, before_seconds=9.0)[0]
    answer = history.answer()
    assert answer.rounds.time_seconds == (1.0, 2.0, 3.0) and answer.usage.time_seconds == (2.7,)
    assert recorded_run(tmp_path / "none", before_seconds=9.0)[0].answer().rounds.time_seconds == ()


def test_gains_losses_and_marks_go_on_where_the_record_of_earlier_starts_ends(tmp_path: Path) -> None:
    def done(number: int) -> RoundDone:
        return round_done(
            number,
            reward_by_task={"add": 0.8 if number <= 60 else 0.1},
            completions_by_task={"add": 8},
            gradient_mass_by_task={"add": {"bob": 1.0}},
        )

    whole = RunRecord()
    told_whole = [said for number in range(1, 121) for said in whole.add(done(number))]
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_bytes(b"\n".join(encode_event(done(number)) for number in range(1, 51)) + b"\n")
    record = RunRecord()
    told = [said for number in range(51, 56) for said in record.add(done(number))]  # while the record is read
    record.restore(*recorded_run(metrics, before_seconds=51.0))
    told += [said for number in range(56, 121) for said in record.add(done(number))]
    assert told == told_whole and len(told) == 1
    assert record.changes.gains() == whole.changes.gains()
    assert record.changes.marks.answer() == whole.changes.marks.answer() != ()


def test_what_came_while_the_record_was_read_follows_it() -> None:
    earlier, now = History(), History()
    for number in range(1, 1501):
        earlier.add_round(round_of(number))
    now.add_round(round_of(1600))
    now.add_usage(usage(1600, 10))
    now.add_usage(usage(1610, 20))
    whole = now.appended_to(earlier)
    whole.add_usage(usage(1620, 40))
    answer = whole.answer()
    assert answer.restored and answer.rounds.time_seconds[-1] == 1600.0
    named = {each.name: each.values for each in answer.usage.series}
    assert named["sent_bytes_per_second"] == (None, 1.0, 2.0)
    assert total(whole.rounds.since(-math.inf), "reward")[1] == 1501


@examples(30)
@given(st.lists(st.binary(max_size=80), max_size=20))
def test_a_record_of_any_bytes_is_read_without_a_fault(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    metrics = tmp_path_factory.mktemp("home") / "metrics.jsonl"
    metrics.write_bytes(b"".join(b'{"event":"round"' + line + b"\n" for line in lines) + b"".join(lines))
    assert recorded_run(metrics, before_seconds=math.inf)[0].answer().rounds.time_seconds == ()
