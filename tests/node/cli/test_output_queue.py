"""Output that waits for nobody: who does not read misses lines, and is told how many."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.cli.node_log import LoggedObserver, node_log
from node.cli.output_queue import OutputQueue, QueuedText, dropped_line, queued_standard_error, writer_to
from node.cli.progress import JsonObserver, PlainObserver, dropped_event
from node.events import Fault, encode_event
from node.home import Home
from node.supervision.outcome import RunOutcome
from swarm.exit_codes import ExitCode
from tests.hang_guard import HANG_SECONDS

LINE = "x" * 99 + "\n"


class Reader:
    """A reader that takes nothing until it is let go."""

    def __init__(self) -> None:
        self.reads = threading.Event()
        self.lines: list[str] = []

    def write(self, piece: bytes) -> None:
        assert self.reads.wait(HANG_SECONDS)
        self.lines += piece.decode().splitlines()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        os.close(descriptor)


def test_everything_is_written_in_order_to_a_reader_that_keeps_up() -> None:
    reader = Reader()
    reader.reads.set()
    queue = OutputQueue(reader.write)
    for number in range(1000):
        queue.put(f"{number}\n")
    assert queue.close(HANG_SECONDS) and queue.idle
    assert reader.lines == [str(number) for number in range(1000)]


def test_a_reader_that_comes_back_reads_what_waited_and_how_much_it_missed() -> None:
    reader = Reader()
    queue = OutputQueue(reader.write, max_bytes=1000)
    for _ in range(50):
        queue.put(LINE)
    assert not queue.idle
    reader.reads.set()
    assert queue.close(HANG_SECONDS)
    assert reader.lines == [LINE.rstrip()] * 10 + [dropped_line(40)]


def test_after_the_missed_lines_come_later_ones_in_their_place() -> None:
    reader = Reader()
    queue = OutputQueue(reader.write, max_bytes=1000)
    for _ in range(12):
        queue.put(LINE)
    reader.reads.set()
    with queue._changed:
        assert queue._changed.wait_for(lambda: not queue._waiting_bytes and not queue._dropped_lines, HANG_SECONDS)
    queue.put("later\n")
    assert queue.close(HANG_SECONDS)
    assert reader.lines[-2:] == [dropped_line(2), "later"]


def test_a_pipe_that_nobody_reads_ends_neither_putting_nor_closing(pipe: tuple[int, int]) -> None:
    fill(pipe[1])
    queue = OutputQueue(writer_to(pipe[1]), max_bytes=1000)
    for _ in range(5000):
        queue.put(LINE)
    assert not queue.close(0.01)
    while not queue.close(0.001):
        os.read(pipe[0], 1 << 16)
    assert queue.idle


def fill(descriptor: int) -> None:
    os.set_blocking(descriptor, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(descriptor, b"x" * 4096)
    os.set_blocking(descriptor, True)


def test_a_descriptor_that_does_not_block_gets_all_of_a_long_piece(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    queue = OutputQueue(writer_to(pipe[1]))
    queue.put("y" * 300_000 + "\n")
    received = b""
    while len(received) < 300_001:
        received += os.read(pipe[0], 1 << 16)
    assert queue.close(HANG_SECONDS) and received == b"y" * 300_000 + b"\n"


def test_a_reader_that_went_away_costs_nothing_more() -> None:
    def write(piece: bytes) -> None:
        raise BrokenPipeError

    queue = OutputQueue(write)
    queue.put("one\n")
    assert queue.close(HANG_SECONDS)
    queue.put("two\n")
    assert queue.idle or queue._gone


def test_text_in_parts_is_one_piece_once_its_line_is_complete() -> None:
    reader = Reader()
    reader.reads.set()
    queue = OutputQueue(reader.write)
    also: list[bytes] = []
    text = QueuedText(queue, also=also.append)
    print("a", "b", file=text)
    text.write("no end")
    text.flush()
    assert queue.close(HANG_SECONDS)
    assert reader.lines == ["a b", "no end"] and also == [b"a b\n", b"no end"]


def test_missed_events_are_an_event() -> None:
    reader = Reader()
    queue = OutputQueue(reader.write, told=dropped_event, max_bytes=1000)
    observer = JsonObserver(QueuedText(queue))
    fault = Fault(time_seconds=1.0, kind="k", detail="d", round=1, fatal=False)
    for _ in range(100):
        observer.on_event(encode_event(fault), fault)
    reader.reads.set()
    assert queue.close(HANG_SECONDS)
    events = [json.loads(line) for line in reader.lines]
    assert [event["event"] for event in events[:-1]] == ["fault"] * (len(events) - 1)
    assert events[-1]["event"] == "dropped" and events[-1]["lines"] + len(events) - 1 == 100


def test_what_a_logger_writes_to_standard_error_waits_for_nobody(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[bytes] = []
    fill(pipe[1])
    with open(pipe[1], "w", closefd=False) as unread:
        monkeypatch.setattr("sys.stderr", unread)
        monkeypatch.setattr("node.cli.output_queue.CLOSE_SECONDS", 0.01)
        with queued_standard_error(logged.append):
            handler = logging.StreamHandler()
            for number in range(20):
                handler.emit(logging.LogRecord("n", logging.ERROR, "p", 1, f"{LINE}{number}", None, None))
    assert len(logged) == 20


class Shown(PlainObserver):
    def __init__(self) -> None:
        super().__init__(io.StringIO())


def test_the_nodes_log_has_what_was_shown_with_dates(tmp_path: Path) -> None:
    home = Home(tmp_path)
    observer = LoggedObserver(Shown(), node_log(home))
    fault = Fault(time_seconds=1.0, kind="k", detail="d", round=1, fatal=False)
    observer.on_note("before it began")
    observer.on_event(encode_event(fault), fault)
    observer.on_outcome(RunOutcome(ExitCode.DONE, "asked"))
    early, told, last = home.log("node").read_text().splitlines()
    assert early.endswith("before it began") and "round 1: k: d" in told and last.endswith("stopped: asked.")
    assert len(early.split()[0].split("-")) == 3


def test_a_start_that_was_refused_leaves_no_line_in_the_log_of_the_node_that_runs(tmp_path: Path) -> None:
    home = Home(tmp_path)
    observer = LoggedObserver(Shown(), node_log(home))
    observer.on_note("Waiting")
    observer.on_outcome(RunOutcome(ExitCode.TRY_AGAIN, "the data directory is in use by another node"))
    assert not home.log("node").exists()
