"""Trackers that raise, hang or die cost the node nothing: real processes, with programs of the test as trackers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from node.configuration import Config
from node.home import Home
from node.supervision.children import ChildSpec
from node.trackers import sink as sink_module
from node.trackers import writers
from node.trackers.records import Record, TrackedRun
from node.trackers.sink import TrackerSink, tracker_specs
from node.trackers.tracker_process import write_all
from node.trackers.writers import check_installed
from protocol.errors import ConfigurationError
from swarm.exit_codes import ExitCode
from tests.factories import round_done
from tests.hang_guard import HANG_SECONDS

pytestmark = pytest.mark.processes
COPIES = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
RAISES = "import sys; sys.stdin.readline(); sys.stdin.readline(); raise RuntimeError('the tracker is out of order')"
HANGS = "import time; time.sleep(1000)"


def program(name: str, code: str, *arguments: str) -> ChildSpec:
    return ChildSpec(name, (sys.executable, "-c", code, *arguments), b"{}", None)


async def until_started(sink: TrackerSink) -> None:
    while any(child.pid is None for child in sink._children):  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def test_every_round_reaches_the_tracker_also_the_last_one(tmp_path: Path) -> None:
    notes: list[str] = []
    sink = TrackerSink(Home(tmp_path), [program("copies", COPIES, str(tmp_path / "copy"))], notes.append)
    sink.start()
    await until_started(sink)
    for number in range(1, 6):
        sink.add(round_done(number))
    await sink.close(asyncio.Event())
    first, *records = (tmp_path / "copy").read_text().splitlines()
    assert first == "{}"
    assert [json.loads(line)["round"] for line in records] == [1, 2, 3, 4, 5]
    assert notes == []


async def test_tracker_that_raises_is_noted_once_with_its_words_and_the_others_go_on(tmp_path: Path) -> None:
    notes: list[str] = []
    specs = [program("raises", RAISES), program("copies", COPIES, str(tmp_path / "copy"))]
    sink = TrackerSink(Home(tmp_path), specs, notes.append)
    sink.start()
    await until_started(sink)
    while not notes:
        sink.add(round_done())
        await asyncio.sleep(0.01)
    for number in range(100):
        sink.add(round_done(number))
    await sink.close(asyncio.Event())
    (note,) = notes
    assert "the tracker raises failed with exit code 1" in note
    assert "the tracker is out of order" in note and "metrics.jsonl" in note
    assert len((tmp_path / "copy").read_text().splitlines()) > 100
    assert "out of order" in (tmp_path / "logs" / "raises.log").read_text()


async def test_tracker_that_hangs_takes_neither_time_nor_memory_and_is_killed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "MAX_UNREAD_BYTES", 50_000)
    notes: list[str] = []
    sink = TrackerSink(Home(tmp_path), [program("hangs", HANGS)], notes.append)
    sink.start()
    await until_started(sink)
    (child,) = sink._children
    began = time.process_time()
    for number in range(500):
        sink.add(round_done(number))
    assert time.process_time() - began < 5.0
    assert 0 < child.unread_bytes <= 50_000
    assert notes == ["The tracker hangs does not keep up: numbers for it are dropped meanwhile."]
    stop_now = asyncio.Event()
    stop_now.set()  # as a second Ctrl-C does; without it, the wait has a limit
    await sink.close(stop_now)
    assert child.pid is None
    assert "killed (signal 9)" in notes[1]


async def test_program_that_does_not_exist_is_noted(tmp_path: Path) -> None:
    notes: list[str] = []
    spec = ChildSpec("missing", (str(tmp_path / "no such program"),), b"{}", None)
    sink = TrackerSink(Home(tmp_path), [spec], notes.append)
    sink.start()
    while not notes:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    sink.add(round_done())
    await sink.close(asyncio.Event())
    assert notes == ["The tracker missing could not be started (No such file or directory)."]


async def test_configured_tracker_writes_its_files_in_its_own_process(tmp_path: Path) -> None:
    config = Config(name="ann", trackers=("tensorboard", "tensorboard"))
    notes: list[str] = []
    specs = tracker_specs(Home(tmp_path), config)
    assert len(specs) == 1
    sink = TrackerSink(Home(tmp_path), specs, notes.append)
    sink.start()
    await until_started(sink)
    sink.add(round_done(3))
    await sink.close(asyncio.Event())
    (path,) = (tmp_path / "tensorboard").iterdir()
    assert b"reward/add" in path.read_bytes()
    assert notes == []


def test_package_that_is_missing_is_refused_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed(("tensorboard",))
    monkeypatch.setitem(writers.PACKAGES, "wandb", "a_package_that_nobody_has")
    with pytest.raises(ConfigurationError, match=r'pip install "starling-swarm\[wandb\]"'):
        check_installed(("tensorboard", "wandb"))


def test_tracker_that_hangs_ends_by_itself_after_the_node_is_gone() -> None:
    code = """
import time
from node.trackers import tracker_process
class Hangs:
    def __init__(self, run): time.sleep(1000)
tracker_process.CLOSE_SECONDS = 0.05
tracker_process.OPENERS["tensorboard"] = Hangs
tracker_process.main()
"""
    run = msgspec.json.encode(TrackedRun("tensorboard", "/nowhere", "ann", {}))
    ended = subprocess.run([sys.executable, "-c", code], input=run + b"\n", timeout=HANG_SECONDS)
    assert ended.returncode == ExitCode.FAULT


class Recording:
    def __init__(self, fails_at: int = 0) -> None:
        self.rounds: list[int] = []
        self.closed = False
        self._fails_at = fails_at

    def write(self, record: Record) -> None:
        if record.round == self._fails_at:
            raise OSError("the disk is full")
        self.rounds.append(record.round)

    def close(self) -> None:
        self.closed = True


def lines(rounds: Sequence[int]) -> Iterator[bytes]:
    return (msgspec.json.encode(Record(number, 1.0, {"a": 1.0})) for number in rounds)


def test_tracker_is_closed_at_the_end_and_after_a_failure() -> None:
    whole, broken = Recording(), Recording(fails_at=2)
    write_all(whole, lines([1, 2, 3]))
    assert (whole.rounds, whole.closed) == ([1, 2, 3], True)
    with pytest.raises(OSError, match="disk is full"):
        write_all(broken, lines([1, 2, 3]))
    assert (broken.rounds, broken.closed) == ([1], True)
