"""The learner process as the supervisor sees it: one line in, events out, and an end that loses nothing.

A start takes three seconds, nearly all of them the import of torch and transformers; so few tests start one.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import torch

from node.checkpoints.checkpoints import Snapshot, read_newest, write
from node.configuration import Config, EvaluationSection, LearnerSection
from node.events import (
    PAUSE_LINE,
    CheckpointSaved,
    Event,
    Fault,
    LearnerReady,
    LearnerStart,
    Loading,
    RoundDone,
    Stopped,
    decode_event,
)
from node.fit.fitted import Fitted, Sizes, read_fitted, remember, write_fitted
from node.fit.host_memory import host_memory_bytes
from node.learner import learner_process
from node.learner.learner_process import run_learner
from node.learner.loop import Learner
from node.policy.policy import Policy
from node.stages.attendance import NEW_PLAN, Attendance
from protocol.errors import AcceleratorError, ConfigurationError
from swarm.exit_codes import FINAL, ExitCode
from tests.hang_guard import HANG_SECONDS

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[3]
COMMAND = (
    sys.executable,
    "-c",
    """
import sys
from node.learner.learner_process import main
code = main()
from node.library_imports import RARELY_USED
from tests.deferred_names import imported_after_all
from transformers.utils.import_utils import create_import_structure_from_path
folders = create_import_structure_from_path.cache_info()
print("read again:", folders.misses - folders.currsize, file=sys.stderr)
print("imported after all:", imported_after_all([*RARELY_USED, "triton"]), file=sys.stderr)
sys.exit(code)
""",
)
CONFIG = Config(
    name="ann", learner=LearnerSection(own_groups=2, completions=2), evaluation=EvaluationSection(prompts=2)
)


class LearnerProcess:
    def __init__(self, home: Path) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with (home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=ROOT,
                start_new_session=True,
            )
        self.write_line(msgspec.json.encode(LearnerStart(str(home), CONFIG.model_dump(mode="json"))))
        self.events: list[Event] = []

    def write_line(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def read_until(self, kind: type[Event]) -> None:
        assert self.process.stdout is not None
        while not (self.events and isinstance(self.events[-1], kind)):
            line = self.process.stdout.readline()
            assert line, f"ended before {kind.__name__}"
            self.events.append(decode_event(line))

    def read_to_the_end(self) -> int:
        assert self.process.stdout is not None
        self.events += [decode_event(line) for line in self.process.stdout]
        return self.process.wait(HANG_SECONDS)


@contextmanager
def learner_in(home: Path) -> Iterator[LearnerProcess]:
    learner = LearnerProcess(home)
    try:
        yield learner
    finally:
        if learner.process.poll() is None:
            os.killpg(learner.process.pid, signal.SIGKILL)
        learner.process.wait()
        for stream in (learner.process.stdin, learner.process.stdout):
            assert stream is not None
            stream.close()


def wait_until_session_is_empty(session: int) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while True:
        try:
            os.killpg(session, 0)
        except ProcessLookupError:
            return
        assert time.monotonic() < deadline, "the learner left processes behind"
        time.sleep(0.05)


def test_a_learner_that_is_asked_to_rest_checkpoints_and_says_why_it_ended(tmp_path: Path) -> None:
    with learner_in(tmp_path) as learner:
        learner.read_until(LearnerReady)
        learner.write_line(PAUSE_LINE.encode())
        assert learner.read_to_the_end() == ExitCode.DONE
    stopped = learner.events[-1]
    assert isinstance(stopped, Stopped) and stopped.because == "paused"
    assert stopped.checkpoint is not None and Path(stopped.checkpoint).exists()


def test_learner_without_its_supervisor_checkpoints_and_ends_and_the_next_one_goes_on_from_there(
    tmp_path: Path,
) -> None:
    with learner_in(tmp_path) as first:
        first.read_until(RoundDone)
        assert first.process.stdin is not None
        first.process.stdin.close()  # as when the supervisor is killed
        assert first.read_to_the_end() == ExitCode.DONE
        wait_until_session_is_empty(first.process.pid)
    log = (tmp_path / "log").read_text()
    assert log.endswith("imported after all: []\n"), "110 MB more, and two seconds"
    assert "\nread again: 0\n" in log, "all models' sources are read twice: half a second"
    kinds = [type(event) for event in first.events]
    assert kinds[0] is Loading
    assert kinds.index(Loading) < kinds.index(LearnerReady) < kinds.index(RoundDone)
    assert kinds[-2:] == [CheckpointSaved, Stopped]
    stopped = first.events[-1]
    assert isinstance(stopped, Stopped)
    assert stopped.because == "supervisor gone"
    newest = read_newest(tmp_path / "checkpoints")
    assert stopped.checkpoint == str(newest.path)
    assert newest.snapshot is not None
    assert newest.snapshot.round == stopped.round > 0

    with learner_in(tmp_path) as second:
        second.read_until(RoundDone)
        ready = next(event for event in second.events if isinstance(event, LearnerReady))
        assert (ready.round, ready.checkpoint) == (stopped.round, stopped.checkpoint)
        second.process.send_signal(signal.SIGTERM)
        assert second.read_to_the_end() == ExitCode.DONE
    last = second.events[-1]
    assert isinstance(last, Stopped)
    assert last.because == "asked"
    assert last.round > stopped.round


def test_end_of_input_before_the_first_line_is_a_wrong_use() -> None:
    ended = subprocess.run(COMMAND, input=b"", capture_output=True, timeout=HANG_SECONDS, cwd=ROOT)
    assert (ended.returncode, ended.stdout) == (ExitCode.USAGE, b"")


def test_data_directory_with_checkpoints_of_another_policy_is_a_bad_configuration(tmp_path: Path) -> None:
    """In this process, which has imported the libraries already; the exit code is what the process returns."""
    other = Snapshot(5, b"another family!!", {"a": torch.zeros(1)}, {}, {"policy": {"model": "builtin:finch"}})
    write(tmp_path / "checkpoints", other, keep=2)
    events: list[Event] = []
    code = run_learner(tmp_path, CONFIG, events.append, lambda: None, began=time.monotonic())
    assert code == ExitCode.BAD_CONFIGURATION
    fault = events[-1]
    assert isinstance(fault, Fault)
    assert fault.fatal and fault.kind == ConfigurationError.reason
    assert "builtin:finch" in fault.detail
    assert read_newest(tmp_path / "checkpoints").snapshot is not None


@pytest.mark.parametrize("message", ["CUDA error: unspecified launch failure\nCUDA kernel errors might be …", "a bug"])
def test_gpu_that_vanishes_is_a_fault_that_a_new_process_may_survive_and_a_bug_is_none(
    message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(Learner, "round", fail)
    events: list[Event] = []
    if message == "a bug":
        with pytest.raises(RuntimeError, match="a bug"):
            run_learner(tmp_path, CONFIG, events.append, lambda: None, began=time.monotonic())
        return
    code = run_learner(tmp_path, CONFIG, events.append, lambda: None, began=time.monotonic())
    assert code == ExitCode.FAULT
    assert code not in FINAL
    fault = events[-1]
    assert isinstance(fault, Fault)
    assert fault.fatal and fault.kind == AcceleratorError.reason
    assert "unspecified launch failure" in fault.detail and "nvidia-smi" in fault.detail


def test_memory_that_runs_out_while_loading_is_told_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*arguments: object, **named: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: 8 GB")

    monkeypatch.setattr(Policy, "load", no_memory)
    events: list[Event] = []
    assert run_learner(tmp_path, CONFIG, events.append, lambda: None, began=time.monotonic()) == ExitCode.FAULT
    fault = events[-1]
    assert isinstance(fault, Fault) and fault.fatal and fault.kind == "memory"
    assert "8 GB" in fault.detail and "starling fit" in fault.detail and "policy.four_bit" in fault.detail


def test_start_after_memory_ran_out_begins_with_what_fitted_and_remembers_what_it_came_to(tmp_path: Path) -> None:
    path, model = tmp_path / "fitted.json", CONFIG.policy.model
    write_fitted(
        path,
        Fitted(model=model, memory_bytes=host_memory_bytes(), rows=4, batch_tokens=512, learner_killed=2),
    )
    events: list[Event] = []
    assert run_learner(tmp_path, CONFIG, events.append, lambda: "asked", began=time.monotonic()) == ExitCode.DONE
    ready = next(event for event in events if isinstance(event, LearnerReady))
    assert (ready.rows, ready.batch_tokens, ready.memory_bytes) == (4, 512, host_memory_bytes())
    remember(path, model, host_memory_bytes(), Sizes(2, 512))
    again = read_fitted(path)
    assert again is not None and (again.rows, again.batch_tokens, again.learner_killed) == (2, 512, 2)


def test_rounds_that_end_for_a_new_plan_go_on_in_the_same_process_and_are_as_many_as_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attendance, events, learners = Attendance(), list[Event](), list[int]()

    def report(event: Event) -> None:
        events.append(event)
        if isinstance(event, LearnerReady):
            attendance.new_plan = None
            learners.append(sum(isinstance(each, Learner) for each in gc.get_objects()))
        elif isinstance(event, RoundDone) and event.round in (2, 3):
            attendance.new_plan = NEW_PLAN

    monkeypatch.setattr(learner_process, "Attendance", lambda: attendance)
    config = CONFIG.model_copy(update={"rounds": 5})
    assert run_learner(tmp_path, config, report, lambda: None, began=time.monotonic()) == ExitCode.DONE
    assert [event.round for event in events if isinstance(event, RoundDone)] == [1, 2, 3, 4, 5]
    assert [event.round for event in events if isinstance(event, LearnerReady)] == [0, 2, 3]
    assert len(set(learners)) == 1  # nothing of the earlier ones is left in memory
    [stopped] = [event for event in events if isinstance(event, Stopped)]
    assert (stopped.because, stopped.round, stopped.lost) == ("rounds", 5, None)
