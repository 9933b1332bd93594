"""Amounts in people's words, and the limits that follow from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.compute_environment import thread_limit
from node.configuration import MachineSection
from node.configuration.amounts import bytes_per_second, size_bytes, span_seconds
from node.configuration.sources import load_config
from node.events import Usage
from node.fit.planning import machine_here
from node.home import Home
from node.supervision.memory_kills import LOOKS_ABOVE, MemoryCap
from protocol.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "expected"), [("6 GB", 6_000_000_000), ("1.5GiB", 3 << 29), ("512 mb", 512_000_000), ("8000", 8000)]
)
def test_amounts_of_memory(text: str, expected: int) -> None:
    assert size_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10 Mbit/s", 1_250_000),
        ("10 Mbps", 1_250_000),
        ("800kbit/s", 100_000),
        ("1.5 MB/s", 1_500_000),
        ("1 MiB/s", 1 << 20),
    ],
)
def test_bandwidths_are_bits_or_bytes_as_they_are_written(text: str, expected: float) -> None:
    assert bytes_per_second(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2h", 7200), ("90 min", 5400), ("1h30min", 5400), ("1h 30m", 5400), ("1d", 86400), ("45s", 45)],
)
def test_time_spans(text: str, expected: float) -> None:
    assert span_seconds(text) == expected


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (size_bytes, "much"),
        (bytes_per_second, "10"),
        (span_seconds, "2"),
        (span_seconds, "0h"),
        (bytes_per_second, "0 Mbit/s"),
    ],
)
def test_what_is_no_amount_is_refused_with_an_example(read: object, text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        read(text)  # type: ignore[operator]


def config(tmp_path: Path, **flags: str) -> MachineSection:
    return load_config(tmp_path, {}, {f"machine.{key}": text for key, text in flags.items()}).machine


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("max_memory", "100 MB", "at least 1 GB"),
        ("max_upload", "1 kB/s", "at least 128 kbit/s"),
        ("schedule", "22-7", "22:00-07:00"),
        ("pause_when", "rain", "battery"),
        ("max_threads", "150%", "max_threads"),
    ],
)
def test_an_impossible_limit_is_refused_before_anything_starts(
    tmp_path: Path, key: str, text: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        config(tmp_path, **{key: text})


def test_the_former_key_of_the_upload_limit_names_its_new_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is now machine\.max_upload.*10 Mbit/s"):
        load_config(tmp_path, {}, {"swarm.upload_bytes_per_second": "7"})


@pytest.mark.parametrize(("text", "threads"), [("0", None), ("2", 2), ("99", 8), ("50%", 4), ("1%", 1), ("100 %", 8)])
def test_threads_as_a_number_or_a_share_of_the_cores(tmp_path: Path, text: str, threads: int | None) -> None:
    assert config(tmp_path, max_threads=text).threads(8) == threads


def test_fewer_threads_that_the_user_chose_already_stay() -> None:
    assert thread_limit(None, {}) == {}
    chosen = thread_limit(4, {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "16"})
    assert chosen == {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "4", "NUMBA_NUM_THREADS": "4"}


def test_the_plan_keeps_within_the_owners_memory(tmp_path: Path) -> None:
    machine = machine_here(Home(tmp_path), "cpu", "float32", max_memory_bytes=2_000_000_000)
    assert machine.narrowest.name == "machine.max_memory" and machine.host_bytes == 1_900_000_000


def usage(total_bytes: int) -> Usage:
    return Usage(
        time_seconds=1.0, supervisor_bytes=0, learner_bytes=total_bytes, swarm_bytes=None, sent_bytes_total=None,
        received_bytes_total=None,
    )  # fmt: skip


def test_a_node_that_stays_above_its_memory_is_told_and_a_short_peak_is_not() -> None:
    cap = MemoryCap(2_000_000_000)
    short = [cap.exceeded_by(usage(2_100_000_000)) for _ in range(LOOKS_ABOVE - 1)]
    assert [*short, cap.exceeded_by(usage(1_900_000_000))] == [None] * LOOKS_ABOVE
    long = [cap.exceeded_by(usage(2_100_000_000)) for _ in range(LOOKS_ABOVE)]
    assert long[-1] == "the node held 2.1 GB, above machine.max_memory = 2.0 GB"
    assert cap.exceeded_by(usage(2_100_000_000)) is None  # the next one starts from zero


def test_without_a_limit_nothing_is_above_it() -> None:
    assert MemoryCap(None).exceeded_by(usage(1 << 50)) is None
