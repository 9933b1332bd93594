"""Real nodes for tests: started, listened to, and ended with everything that belongs to them."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

Event = dict[str, Any]
HANG_SECONDS = 900.0  # a guard against hangs, not a limit on speed
MARK = "PROCESS_TEST_MARK"  # in the environment of every process that a test starts, and of its descendants
STARLING = (sys.executable, "-m", "node.cli.main")


class NodeProcess:
    """One ``starling up --json``, which ends with its input: also where the tests themselves are killed."""

    def __init__(self, home: Path, environment: Mapping[str, str], flags: tuple[str, ...], max_file_bytes: int | None):
        def limit() -> None:
            if max_file_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))

        self.home = home
        self.events: list[Event] = []
        self.other_lines: list[str] = []
        self._more = threading.Condition()
        self.process = subprocess.Popen(
            [
                *STARLING,
                "up",
                "--home",
                str(home),
                "--listen",
                "/ip4/127.0.0.1/tcp/0",
                "--json",
                "--until-input-ends",
                *flags,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=limit,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                try:
                    self.events.append(json.loads(line))
                except ValueError:
                    self.other_lines.append(line.decode())
                self._more.notify_all()

    def wait_for(self, wanted: Callable[[Event], bool], after: int = 0) -> Event:
        """The first event from index ``after`` on that is ``wanted``."""
        deadline = time.monotonic() + HANG_SECONDS
        with self._more:
            while True:
                for event in self.events[after:]:
                    if wanted(event):
                        return event
                if self.process.poll() is not None or not self._more.wait(max(0.0, deadline - time.monotonic())):
                    raise AssertionError(f"never said; last words: {self.events[-5:]} {self.other_lines[-5:]}")

    def wait_for_round(self, number: int, after: int = 0) -> Event:
        return self.wait_for(lambda e: e["event"] == "round" and e["round"] >= number, after)

    def wait_for_event(self, name: str, after: int = 0) -> Event:
        return self.wait_for(lambda e: e["event"] == name, after)

    def wait_for_note(self, part: str) -> Event:
        return self.wait_for(lambda e: e["event"] == "note" and part in e["text"])

    def of_kind(self, name: str) -> list[Event]:
        return [event for event in self.events if event["event"] == name]

    def end(self) -> int:
        """Its exit code, once it has ended by itself and everything it said was read."""
        code = self.process.wait(HANG_SECONDS)
        self._reader.join(HANG_SECONDS)
        return code

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def interrupt(self) -> int:
        """As Ctrl-C in a terminal does: everything in the foreground group gets the signal."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.end()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None and self.process.stdout is not None
        self._reader.join(HANG_SECONDS)
        self.process.stdin.close()
        self.process.stdout.close()


class Processes:
    """Starts nodes and verbs that carry one mark, and finds whatever of them still lives."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._mark = uuid.uuid4().hex
        self._nodes: list[NodeProcess] = []
        clean = {name: text for name, text in os.environ.items() if not name.startswith("STARLING_")}
        self.environment = clean | {
            MARK: self._mark,
            "STARLING_SWARM__LAN_DISCOVERY": "false",
            "STARLING_API__PORT": "0",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(root),
        }

    def up(self, *flags: str, home: Path | None = None, max_file_bytes: int | None = None) -> NodeProcess:
        node = NodeProcess(home or self.root / "home", self.environment, flags, max_file_bytes)
        self._nodes.append(node)
        return node

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One verb, to its end."""
        return subprocess.run(
            [*STARLING, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS * 3,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def peers_once(self, home: Path, wanted: Callable[[Event], bool]) -> list[Event]:
        """What ``starling peers`` of the node in ``home`` lists, once every one of them is ``wanted``."""
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            peers: list[Event] = json.loads(self.run("peers", "--home", str(home), "--json").stdout)["peers"]
            if peers and all(map(wanted, peers)):
                return peers
            assert time.monotonic() < deadline, peers
            time.sleep(0.5)  # each look is a process of its own

    def alive(self) -> dict[int, str]:
        """Every living process with the mark: process id -> command line."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and f"{MARK}={self._mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def none_alive(self) -> bool:
        """Whether nothing of what was started lives on, soon."""
        deadline = time.monotonic() + HANG_SECONDS
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self.alive()

    def close(self) -> None:
        for process in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for node in self._nodes:
            node.close()


@pytest.fixture
def processes() -> Iterator[Processes]:
    root = Path(tempfile.mkdtemp(prefix="st-"))  # short: a Unix socket's path has few bytes
    started = Processes(root)
    try:
        yield started
    finally:
        started.close()
        shutil.rmtree(root, ignore_errors=True)
