"""Real nodes for tests: started, listened to, and ended with everything that belongs to them.

Their rounds are small, and they rest in between: most tests want nodes that train, and none looks at how well.
A node whose training is not the subject of a test is started with ``torch=False``: its learner is then
``stand_in_learner``, which is there at once; everything else of it is real.
"""

from __future__ import annotations

import contextlib
import fcntl
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from scripts.private_cluster_machines import SMALL_ROUNDS
from tests.hang_guard import HANG_SECONDS

# Network namespaces with routes of their own take root.
collect_ignore = [] if sys.platform == "linux" and os.geteuid() == 0 else ["test_port_mapping.py"]

Event = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
MARK = "PROCESS_TEST_MARK"  # in the environment of every process that a test starts, and of its descendants
STARLING = (sys.executable, "-m", "node.cli.main")


def with_stand_ins(replaced: str) -> tuple[str, ...]:
    """The command ``starling``, with stand-ins for what ``starling_with_stand_ins`` can replace."""
    return (sys.executable, "-m", "tests.processes.starling_with_stand_ins", replaced) if replaced else STARLING


class Program:
    """A process in a session of its own whose output is read as it comes: silence is what tells a hang from work."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int = subprocess.DEVNULL,
        stderr: int = subprocess.PIPE,
        at_its_start: Callable[[], object] | None = None,
    ) -> None:
        self.lines: list[str] = []  # of standard output
        self.error_lines: list[str] = []
        self._more = threading.Condition()
        self.process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=dict(environment),
            cwd=ROOT,
            start_new_session=True,
            preexec_fn=at_its_start,
        )
        pipes = ((self.process.stdout, self._on_line), (self.process.stderr, self.error_lines.append))
        self._readers = [
            threading.Thread(target=self._read, args=(pipe, on_line), daemon=True)
            for pipe, on_line in pipes
            if pipe is not None
        ]
        for reader in self._readers:
            reader.start()

    def _on_line(self, line: str) -> None:
        self.lines.append(line)

    def _read(self, pipe: IO[bytes], on_line: Callable[[str], None]) -> None:
        for line in pipe:
            with self._more:
                on_line(line.decode(errors="replace"))
                self._more.notify_all()

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Returns once ``holds()``, which is asked at each line. Fails where the process ended, or fell silent."""
        if not self._listen_until(holds):
            raise AssertionError(f"ended with {self.end()}: {self.last_words()}")

    def _listen_until(self, holds: Callable[[], bool]) -> bool:
        """Whether ``holds()`` before the end of all output."""
        with self._more:
            while not holds():
                silent_since = time.monotonic()
                while not self._more.wait(0.1):
                    if not any(reader.is_alive() for reader in self._readers):
                        return holds()
                    if time.monotonic() - silent_since > HANG_SECONDS:
                        raise AssertionError(f"silent for {HANG_SECONDS:g} s: {self.last_words()}")
        return True

    def last_words(self) -> str:
        return "".join(self.lines[-10:] + self.error_lines[-10:])

    def end(self) -> int:
        """Its exit code, once it has ended by itself and everything it said was read."""
        self._listen_until(lambda: False)
        return self.process.wait(HANG_SECONDS)

    def ended(self) -> subprocess.CompletedProcess[str]:
        code = self.end()
        return subprocess.CompletedProcess(self.process.args, code, "".join(self.lines), "".join(self.error_lines))

    def interrupt(self) -> int:
        """As Ctrl-C in a terminal does: everything in the foreground group gets the signal."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.end()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(HANG_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


class NodeProcess(Program):
    """One ``starling up --json``, which ends with its input: also where the tests themselves are killed."""

    def __init__(
        self,
        home: Path,
        environment: Mapping[str, str],
        flags: tuple[str, ...],
        max_file_bytes: int | None,
        starling: Sequence[str],
    ) -> None:
        def limit() -> None:
            if max_file_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))

        self.home = home
        self.events: list[Event] = []
        listen = ("--listen", "/ip4/127.0.0.1/tcp/0")
        super().__init__(
            [*starling, "up", "--home", str(home), *listen, "--json", "--until-input-ends", *flags],
            environment,
            stdin=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            at_its_start=limit,
        )

    def _on_line(self, line: str) -> None:
        try:
            self.events.append(json.loads(line))
        except ValueError:
            self.lines.append(line)

    def last_words(self) -> str:
        return f"{self.events[-5:]} {super().last_words()}"

    def wait_for(self, wanted: Callable[[Event], bool], after: int = 0) -> Event:
        """The first event from index ``after`` on that is ``wanted``."""
        found: list[Event] = []
        seen = after

        def holds() -> bool:
            nonlocal seen
            found.extend(event for event in self.events[seen:] if wanted(event))
            seen = len(self.events)
            return bool(found)

        self.wait_until(holds)
        return found[0]

    def wait_for_round(self, number: int, after: int = 0) -> Event:
        return self.wait_for(lambda e: e["event"] == "round" and e["round"] >= number, after)

    def wait_for_event(self, name: str, after: int = 0) -> Event:
        return self.wait_for(lambda e: e["event"] == name, after)

    def wait_for_note(self, part: str) -> Event:
        return self.wait_for(lambda e: e["event"] == "note" and part in e["text"])

    def of_kind(self, name: str) -> list[Event]:
        return [event for event in self.events if event["event"] == name]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.end()


class Processes:
    """Starts nodes and verbs that carry one mark, and finds whatever of them still lives."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._mark = uuid.uuid4().hex
        self._programs: list[Program] = []
        clean = {name: text for name, text in os.environ.items() if not name.startswith("STARLING_")}
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self.environment = clean | {
            MARK: self._mark,
            **SMALL_ROUNDS,
            "STARLING_SWARM__LAN_DISCOVERY": "false",
            "STARLING_API__PORT": "0",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": path,
            "TMPDIR": str(root),
        }

    def up(
        self,
        *flags: str,
        home: Path | None = None,
        max_file_bytes: int | None = None,
        torch: bool = True,
        starling: Sequence[str] = (),
    ) -> NodeProcess:
        """``starling`` is the command, where it is not that of the sources; ``torch``: with a learner that trains, and
        rests after each round."""
        command = starling or with_stand_ins("rest" if torch else "learner")
        node = NodeProcess(home or self.root / "home", self.environment, flags, max_file_bytes, command)
        self._programs.append(node)
        return node

    def start(self, *command: str, at_its_start: Callable[[], object] | None = None) -> Program:
        program = Program(command, self.environment, at_its_start=at_its_start)
        self._programs.append(program)
        return program

    def run(self, *arguments: str, stand_ins: str = "") -> subprocess.CompletedProcess[str]:
        """One verb, to its end; ``stand_ins`` as in ``starling_with_stand_ins``."""
        return self.start(*with_stand_ins(stand_ins), *arguments).ended()

    def status(self, node: NodeProcess) -> Event:
        """What ``starling status`` says of it."""
        return dict(json.loads(self.run("status", "--home", str(node.home), "--json").stdout))

    def peers_once(self, home: Path, wanted: Callable[[Event], bool]) -> list[Event]:
        """What ``starling peers`` of the node in ``home`` lists, once every one of them is ``wanted``."""
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            peers: list[Event] = json.loads(self.run("peers", "--home", str(home), "--json").stdout)["peers"]
            if peers and all(map(wanted, peers)):
                return peers
            assert time.monotonic() < deadline, peers
            time.sleep(0.3)  # each look is a process of its own

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
        for program in self._programs:
            program.close()


@contextlib.contextmanager
def contained() -> Iterator[Processes]:
    """Whatever is started within ends with it."""
    root = Path(tempfile.mkdtemp(prefix="st-"))  # short: a Unix socket's path has few bytes
    started = Processes(root)
    try:
        yield started
    finally:
        started.close()
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def trained_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a node that has trained for two rounds, made once for all workers; tests work on copies."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "trained"
    folder.mkdir(exist_ok=True)
    home = folder / "home"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
        if not home.exists():
            with contained() as started:
                node = started.up("--rounds", "2")
                assert node.end() == 0, node.last_words()
                shutil.copytree(node.home, home)
    return home


@pytest.fixture
def processes() -> Iterator[Processes]:
    with contained() as started:
        yield started


@pytest.fixture(scope="module")
def shared() -> Iterator[Processes]:
    """For nodes that several tests of one file look at."""
    with contained() as started:
        yield started
