"""One node: started as its service manager would start it, listened to, and held to what it has promised."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Final, NamedTuple

from scripts import REPOSITORY
from scripts.chaos import conditions, marked_processes
from scripts.chaos.places import FILLER, NodePlace
from scripts.chaos.stub_learner import CHECKPOINT, ROUND_SECONDS_VARIABLE, WRONG_GROUP, saved_round

RESTART_SECONDS: Final = 3.0  # scripts/systemd/starling.service waits longer; a run is short
FINAL_CODES: Final = frozenset({2, 77, 78})  # as there
STORE_BYTES: Final = 4 << 20
HEARTBEAT_SECONDS: Final = 10.0  # twice the default: all nodes share a few cores
KILLED: Final = re.compile(r"^(learner|swarm) was killed \(signal 9\)")
UNWRITABLE: Final = re.compile(r"metrics\.jsonl cannot be written")


class Told(NamedTuple):
    what: str  # "learner" or "swarm", which was killed, or "disk", which is full
    at: float  # by the monotonic clock


class Incarnation:
    """One run of a node's supervisor, and what it has told."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.told: list[Told] = []
        self.killed_at: float | None = None  # or ended without memory; what it had still to say then is lost
        self.reader: threading.Thread | None = None


class ChaosNode:
    def __init__(
        self,
        place: NodePlace,
        peers: Sequence[str],
        names: Mapping[str, str],
        mark: str,
        round_seconds: float,
        on_violation: Callable[[str], None],
    ) -> None:
        self.place = place
        self.number = place.number
        self.past: list[Incarnation] = []
        self.rounds = self.foreign_used = self.starts = 0
        self.events: Counter[str] = Counter()
        self.exits: Counter[int] = Counter()
        self.ready = False  # in this incarnation
        self.last_words = ""  # why the node ended, as it told
        self.lacked_memory = False  # a process of it, at some time
        self.is_over = False  # ended with a code after which it is not started again
        self._violation = on_violation
        self._saved = 0  # the newest round known to be on disk
        self._present: Incarnation | None = None
        self._restart_at: float | None = 0.0
        self._command = place.command(
            [
                sys.executable, "-P", "-m", "scripts.chaos.starling_under_conditions", "up", "--home", str(place.home),
                "--listen", place.multiaddr, "--json", "--until-input-ends", "--name", f"n{place.number}",
                "--set", f"swarm.store_bytes={STORE_BYTES}", "--set", f"swarm.heartbeat_seconds={HEARTBEAT_SECONDS:g}",
                *(f"--peer={peer}" for peer in peers),
            ]
        )  # fmt: skip
        self._environment = _environment(
            {
                marked_processes.MARK: mark,
                marked_processes.NODE: str(place.number),
                conditions.VARIABLE: str(place.conditions),
                conditions.NAMES_VARIABLE: json.dumps(names),
                ROUND_SECONDS_VARIABLE: str(round_seconds),
            }
        )
        self._errors = place.home.with_suffix(".stderr")

    @property
    def incarnation(self) -> Incarnation | None:
        """The run of its supervisor that is under way."""
        return self._present

    def start(self) -> None:
        self.look_at_checkpoint()
        with self._errors.open("ab") as errors:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._environment,
                start_new_session=True,
            )
        self._present = Incarnation(process)
        self._restart_at, self.ready = None, False
        self.starts += 1
        assert process.stdout is not None
        reader = threading.Thread(target=self._read, args=(process.stdout, self._present), daemon=True)
        self._present.reader = reader
        reader.start()

    def tend(self) -> None:
        """Starts the supervisor again once it has ended, as a service manager does."""
        if self._present is not None and (code := self._present.process.poll()) is not None:
            if self.lacked_memory and code:
                self._present.killed_at = self._present.killed_at or time.monotonic()
            self._bury(self._present)
            self.exits[code] += 1
            if code in FINAL_CODES:
                self.is_over = True
                self._violation(f"node {self.number} ended for good with {code}: {self.logs()[-2000:]}")
            else:
                self._restart_at = time.monotonic() + RESTART_SECONDS
        if self._present is None and self._restart_at is not None and time.monotonic() >= self._restart_at:
            self.start()

    def ask_to_stop(self) -> None:
        self._restart_at = None
        if self._present is not None:
            with contextlib.suppress(ProcessLookupError):
                self._present.process.send_signal(signal.SIGTERM)

    def wait(self, until: float) -> int | None:
        """Returns the exit code, None where it has not ended by ``until``, a time of the monotonic clock."""
        if self._present is None:
            return 0
        try:
            code = self._present.process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None
        self._bury(self._present)
        return code

    def kill(self) -> None:
        self._restart_at = None
        if self._present is not None:
            self._present.process.kill()
            self._present.process.wait()
            self._bury(self._present)

    def logs(self) -> str:
        """Returns everything that the node's processes logged."""
        files = [self._errors, *(self.place.home / "logs").glob("*.log*")]
        return "".join(path.read_text(errors="replace") for path in files if path.exists())

    def look_at_checkpoint(self) -> None:
        """What is on disk counts, also where its event was lost with a killed supervisor. To be asked while no learner
        runs whose events are not yet read."""
        try:
            on_disk = saved_round(self.place.home)
        except ValueError as error:
            self._violation(f"node {self.number}: {CHECKPOINT}: {error}")
            return
        if on_disk < self._saved:
            self._violation(f"node {self.number} has round {on_disk} on disk, and told of {self._saved}")
        self._saved = max(self._saved, on_disk)

    def directory_bytes(self) -> int:
        """Returns the bytes in the data directory, without what the script itself put there."""
        total = 0
        for folder, _, names in os.walk(self.place.home):
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(folder, name)).st_size if name != FILLER else 0  # noqa: PTH118
        return total

    def _bury(self, ended: Incarnation) -> None:
        if ended.process.stdin is not None:
            with contextlib.suppress(OSError):
                ended.process.stdin.close()
        if ended.reader is not None:
            ended.reader.join(10.0)
        self.past.append(ended)
        self._present, self.ready = None, False

    def _read(self, output: IO[bytes], incarnation: Incarnation) -> None:
        with output:
            for line in output:
                try:
                    self._on_event(json.loads(line), incarnation)
                except ValueError:
                    self.events["unreadable"] += 1

    def _on_event(self, event: Mapping[str, Any], incarnation: Incarnation) -> None:
        kind = str(event["event"])
        self.events[kind] += 1
        if kind == "checkpoint":
            self._saved = max(self._saved, int(event["round"]))
        elif kind == "round":
            self.rounds += 1
            self.foreign_used += int(event["foreign_groups_used"])
        elif kind == "ended":
            self.last_words = str(event["because"])
        elif kind == "ready":
            self.ready = True
            if event["round"] < self._saved:
                self._violation(
                    f"node {self.number} continued from round {event['round']} although {self._saved} was on disk"
                )
        elif kind == "fault" and event["kind"] == WRONG_GROUP:
            self._violation(f"node {self.number} received a wrong group: {event['detail']}")
        elif kind == "fault" or (kind == "note" and UNWRITABLE.search(event["text"])):
            incarnation.told.append(Told("disk", time.monotonic()))
        elif kind == "note" and (killed := KILLED.search(event["text"])):
            incarnation.told.append(Told(killed[1], time.monotonic()))


def _environment(besides: Mapping[str, str]) -> dict[str, str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("STARLING_")}
    return clean | {
        "PYTHONPATH": str(REPOSITORY),
        "STARLING_SWARM__LAN_DISCOVERY": "false",
        "STARLING_API__PORT": "0",
        "OMP_NUM_THREADS": "1",
        **besides,
    }
