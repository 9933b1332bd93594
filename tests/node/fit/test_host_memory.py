"""The memory that a process can have: that of the machine, or of its control group."""

from __future__ import annotations

import os
from pathlib import Path

from node.fit.host_memory import host_memory_bytes, own_control_groups

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def groups(root: Path, limits: dict[str, str], member: str = "0::/a/b\n") -> tuple[Path, Path]:
    proc, control_groups = root / "proc", root / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(member)
    for name, limit in limits.items():
        (control_groups / name).mkdir(parents=True, exist_ok=True)
        (control_groups / name / "memory.max").write_text(limit)
    return control_groups, proc


def test_the_narrowest_limit_of_the_groups_above_counts(tmp_path: Path) -> None:
    assert host_memory_bytes(*groups(tmp_path, {"a": "5000\n", "a/b": "max\n", "c": "10\n"})) == 5000


def test_without_a_limit_it_is_the_machines(tmp_path: Path) -> None:
    assert host_memory_bytes(*groups(tmp_path, {"a/b": "max\n"})) == MACHINE
    assert host_memory_bytes(tmp_path / "none", tmp_path / "none") == MACHINE


def test_the_innermost_group_comes_first(tmp_path: Path) -> None:
    control_groups, proc = groups(tmp_path, {}, "9:name=systemd:/x\n0::/a/b\n")
    assert own_control_groups(control_groups, proc) == [
        control_groups / "a" / "b",
        control_groups / "a",
        control_groups,
    ]
