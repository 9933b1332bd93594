"""What the learner hears of the other devices' processes, with programs in their place that end as these may."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch

from node.learner.objective.forward import WHOLE
from node.learner.sharding.device_processes import DeviceProcesses
from node.learner.sharding.messages import RAN_OUT, DeviceStart, Prepare
from node.learner.sharding.starting import LearnerDevices
from node.learner.steps.devices import StepTask
from protocol.errors import AcceleratorError
from tests.hang_guard import HANG_SECONDS

pytestmark = pytest.mark.processes

START = DeviceStart(
    rank=1, count=2, device="cpu", meeting="", family=b"", policy={}, learner={}, objective={}, log_level="info"
)
TASK = StepTask((), WHOLE, 1.0, 8, 4)


class Watched:
    """One process that runs ``program``, and what is told of its end."""

    def __init__(self, program: str) -> None:
        self.told: list[tuple[str, bool]] = []
        self._ended = threading.Event()
        self.processes = DeviceProcesses([START], self._on_loss, (sys.executable, "-c", program))

    def _on_loss(self, because: str, ran_out: bool) -> None:
        self.told.append((because, ran_out))
        self._ended.set()

    def wait(self) -> tuple[str, bool]:
        assert self._ended.wait(HANG_SECONDS)
        return self.told[0]


@pytest.mark.parametrize(
    ("program", "part", "ran_out"),
    [
        ("raise SystemExit(3)", "with exit code 3", False),
        (f"raise SystemExit({RAN_OUT})", "since its memory ran out", True),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "with signal 9", False),
    ],
)
def test_a_process_that_ends_is_told_at_once_with_how_and_gets_no_more_orders(
    program: str, part: str, ran_out: bool
) -> None:
    watched = Watched(program)
    because, said = watched.wait()
    assert part in because and "device 1" in because and said is ran_out
    with pytest.raises(AcceleratorError):
        watched.processes.tell(Prepare())
    watched.processes.end()
    assert len(watched.told) == 1


@pytest.fixture
def patient() -> Iterator[Watched]:
    """A device that takes every order and does nothing, until its input ends."""
    watched = Watched("import sys; sys.stdin.read()")
    yield watched
    watched.processes.end()


def test_a_process_that_was_asked_to_end_is_no_loss(patient: Watched) -> None:
    patient.processes.tell(Prepare())
    patient.processes.end()
    assert patient.told == []


@pytest.mark.parametrize(("error", "counted"), [(torch.OutOfMemoryError("no memory"), 1), (RuntimeError("gone"), 0)])
def test_a_step_that_fails_is_never_repeated_in_a_learner_in_shards(
    patient: Watched, error: Exception, counted: int
) -> None:
    ran_out: list[int] = []
    group = cast(Any, type("Group", (), {"rank": 0, "count": 2}))
    devices = LearnerDevices(group, cast(Any, None), patient.processes, lambda: ran_out.append(1))
    with pytest.raises(AcceleratorError, match="started again"), devices.taking(TASK):
        raise error
    assert len(ran_out) == counted
