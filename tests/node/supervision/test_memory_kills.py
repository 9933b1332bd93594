"""Learners that ended by SIGKILL: which of them the system killed for memory, and with what the next one begins."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from node.events import LearnerReady
from node.fit.fitted import Fitted, read_fitted, write_fitted
from node.supervision.memory_kills import KilledLearner, MemoryKills, counted_kills, killed_for_memory, smaller_plan

GIB = 1 << 30
KILLED = KilledLearner(
    returncode=-signal.SIGKILL, kills_before=3, kills_after=4, resident_bytes=20 * GIB, memory_bytes=24 * GIB
)
READY = LearnerReady(
    time_seconds=1.0,
    model="builtin:wren",
    family="",
    tokenizer="",
    parameters=1,
    trainable_parameters=1,
    device="cpu",
    dtype="float32",
    tasks=(),
    round=0,
    checkpoint=None,
    seconds=1.0,
    rows=128,
    batch_tokens=8192,
    memory_bytes=24 * GIB,
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"returncode": 1}, False),
        ({"returncode": -signal.SIGTERM}, False),
        ({"kills_after": 3}, False),  # a person's kill -9, however large the learner
        ({"resident_bytes": 300 << 20}, False),  # another process was killed for memory meanwhile
        ({"resident_bytes": None}, False),
        ({"kills_before": None}, True),  # not counted, and it held five sixths
        ({"kills_after": None, "resident_bytes": 10 * GIB}, False),
    ],
)
def test_only_a_large_learner_whose_kill_was_counted_was_killed_for_memory(
    changes: dict[str, int | None], expected: bool
) -> None:
    assert killed_for_memory(replace(KILLED, **changes)) is expected  # type: ignore[arg-type]


def test_a_killed_learner_comes_back_with_half_of_both() -> None:
    once = smaller_plan(READY, None)
    assert once == Fitted(model="builtin:wren", memory_bytes=24 * GIB, rows=64, batch_tokens=4096, learner_killed=1)
    twice = smaller_plan(READY, once)
    assert twice is not None and (twice.rows, twice.batch_tokens, twice.learner_killed) == (32, 2048, 2)


def test_what_the_learner_had_come_to_counts_and_a_file_of_another_model_does_not() -> None:
    fitted = Fitted(model="builtin:wren", memory_bytes=24 * GIB, rows=16, batch_tokens=8192)
    smaller = smaller_plan(READY, fitted)
    assert smaller is not None and (smaller.rows, smaller.batch_tokens) == (8, 4096)
    other = smaller_plan(READY, Fitted(model="other", memory_bytes=24 * GIB, rows=16, batch_tokens=512))
    assert other is not None and (other.rows, other.batch_tokens, other.learner_killed) == (64, 4096, 1)


def test_at_the_floors_there_is_no_smaller_plan() -> None:
    assert smaller_plan(READY, Fitted(model="builtin:wren", memory_bytes=24 * GIB, rows=1, batch_tokens=256)) is None


def kills(root: Path, *, group: str | None, machine: str | None) -> tuple[Path, Path]:
    (root / "proc" / "self").mkdir(parents=True, exist_ok=True)
    (root / "proc" / "self" / "cgroup").write_text("0::/node\n")
    (root / "groups" / "node").mkdir(parents=True, exist_ok=True)
    if group is not None:
        (root / "groups" / "node" / "memory.events").write_text(group)
    if machine is not None:
        (root / "proc" / "vmstat").write_text(machine)
    return root / "groups", root / "proc"


def test_kills_are_counted_by_the_control_group_otherwise_by_the_machine(tmp_path: Path) -> None:
    assert counted_kills(*kills(tmp_path, group=None, machine=None)) is None
    assert counted_kills(*kills(tmp_path, group=None, machine="pgfault 17\noom_kill 5\n")) == 5
    assert counted_kills(*kills(tmp_path, group="low 0\noom 2\noom_kill 2\n", machine=None)) == 2
    assert counted_kills(*kills(tmp_path, group="\n", machine=None)) == 5  # unreadable: the machine's


def test_a_learner_that_the_system_killed_leaves_a_smaller_plan_and_a_note(tmp_path: Path) -> None:
    where = kills(tmp_path, group="oom_kill 0\n", machine=None)
    watched = MemoryKills(tmp_path / "fitted.json", *where)
    watched.learner_starts()
    kills(tmp_path, group="oom_kill 1\n", machine=None)
    note = watched.learner_ended(-signal.SIGKILL, 1 << 40, READY)
    assert note is not None and "engine.rows = 64" in note and "learner.batch_tokens = 4096" in note
    assert read_fitted(tmp_path / "fitted.json") == smaller_plan(READY, None)


def test_a_learner_that_a_person_killed_leaves_neither(tmp_path: Path) -> None:
    watched = MemoryKills(tmp_path / "fitted.json", *kills(tmp_path, group="oom_kill 7\n", machine=None))
    watched.learner_starts()
    assert watched.learner_ended(-signal.SIGKILL, 1 << 40, READY) is None
    assert read_fitted(tmp_path / "fitted.json") is None


def test_where_nothing_can_be_halved_the_note_names_the_command_that_helps(tmp_path: Path) -> None:
    watched = MemoryKills(tmp_path / "fitted.json", tmp_path, tmp_path)  # nothing is counted there
    assert "still loading" in str(watched.learner_ended(-signal.SIGKILL, 1 << 40, None))
    write_fitted(
        tmp_path / "fitted.json", Fitted(model="builtin:wren", memory_bytes=24 * GIB, rows=1, batch_tokens=256)
    )
    note = str(watched.learner_ended(-signal.SIGKILL, 1 << 40, READY))
    assert "Nothing is left to halve" in note and "starling fit" in note


def test_a_learner_that_was_ended_for_the_owners_limit_leaves_a_smaller_plan_and_the_next_one_starts_clean(
    tmp_path: Path,
) -> None:
    watched = MemoryKills(tmp_path / "fitted.json", *kills(tmp_path, group="oom_kill 7\n", machine=None))
    watched.learner_starts()
    watched.exceeds("the node held 2.1 GB, above machine.max_memory = 2.0 GB")
    note = str(watched.learner_ended(-signal.SIGKILL, 1 << 30, READY))
    assert "above machine.max_memory" in note and "engine.rows = 64" in note
    assert read_fitted(tmp_path / "fitted.json") == smaller_plan(READY, None)
    watched.learner_starts()
    assert watched.learner_ended(-signal.SIGKILL, 1 << 30, READY) is None
