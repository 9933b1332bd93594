"""TensorBoard's event files, read back with the definitions and the checksums of another implementation."""

from __future__ import annotations

import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event as TensorBoardEvent

from node.trackers.event_files import EventFile, framed
from node.trackers.records import Record, TrackedRun
from node.trackers.writers import TensorBoard

START = 1  # SessionLog.START


def masked(content: bytes) -> int:
    crc = crc32c(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_events(path: Path) -> list[Any]:
    """Reads a TFRecord file and checks every sum."""
    content, events = path.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        assert struct.unpack("<I", content[8:12])[0] == masked(content[:8])
        body = content[12 : 12 + length]
        assert struct.unpack("<I", content[12 + length : 16 + length])[0] == masked(body)
        events.append(TensorBoardEvent.FromString(body))
        content = content[16 + length :]
    return events


@given(st.binary(max_size=300))
def test_checksums_are_those_of_another_implementation(content: bytes) -> None:
    written = framed(content)
    assert struct.unpack("<I", written[8:12])[0] == masked(written[:8])
    assert struct.unpack("<I", written[-4:])[0] == masked(content)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    with closing(EventFile(tmp_path / "tensorboard", time_seconds=1.7e9)) as file:
        file.write(300, 1.7e9 + 0.5, {"round/loss": -0.25, "reward/größe": 1e-3})
    (path,) = (tmp_path / "tensorboard").iterdir()
    assert path.name.startswith("events.out.tfevents.1700000000.")
    first, second = read_events(path)
    assert (first.file_version, first.wall_time) == ("brain.Event:2", 1.7e9)
    assert (second.step, second.wall_time) == (300, 1.7e9 + 0.5)
    values = {value.tag: value.simple_value for value in second.summary.value}
    assert values == pytest.approx({"round/loss": -0.25, "reward/größe": 1e-3})


def test_rounds_that_are_repeated_hide_what_was_written_of_them(tmp_path: Path) -> None:
    tracker = TensorBoard(TrackedRun("tensorboard", str(tmp_path), "ann", {}))
    for number in (8, 8, 9, 10, 9, 10):  # after round 10 the learner died and continued after round 8
        tracker.write(Record(number, 1e9 + number, {"round/loss": float(number)}))
    tracker.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    begun = [event.step for event in read_events(path) if event.session_log.status == START]
    assert begun == [8, 9]


def test_tracker_that_got_nothing_leaves_no_file(tmp_path: Path) -> None:
    TensorBoard(TrackedRun("tensorboard", str(tmp_path), "ann", {})).close()
    assert not list(tmp_path.iterdir())
