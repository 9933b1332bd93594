"""Limits of main memory: the machine's, those of control groups of both versions, and the process's own."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from node.fit.host_memory import control_group_limits, control_group_room, host_memory_bytes, own_control_groups
from tests.node.fit.shapes import GB, limited_to

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def system(tmp_path: Path) -> tuple[Path, Path]:
    """Returns stand-ins for /sys/fs/cgroup and /proc."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "cgroup").mkdir()
    return tmp_path / "cgroup", tmp_path / "proc"


def member_of(proc: Path, text: str) -> None:
    (proc / "self" / "cgroup").write_text(text)


def limit(group: Path, name: str, text: str) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / name).write_text(text + "\n")


def test_version_2_counts_the_own_group_and_those_above_it(system: tuple[Path, Path]) -> None:
    root, proc = system
    member_of(proc, "0::/system.slice/node.service\n")
    limit(root / "system.slice" / "node.service", "memory.max", "max")
    limit(root / "system.slice", "memory.max", str(8 * GB))
    limit(root / "other.slice", "memory.max", "1000")
    assert list(control_group_limits(root, proc)) == [8 * GB]


def test_version_1_counts_the_memory_controller_alone_and_not_its_number_for_no_limit(
    system: tuple[Path, Path],
) -> None:
    root, proc = system
    member_of(proc, "8:pids:/a\n4:memory:/docker/abc\n2:cpu,cpuacct:/a\n0::/\n")
    limit(root / "memory" / "docker" / "abc", "memory.limit_in_bytes", str(4 * GB))
    limit(root / "memory", "memory.limit_in_bytes", "9223372036854771712")
    limit(root / "pids" / "a", "memory.limit_in_bytes", "1000")
    assert list(control_group_limits(root, proc)) == [4 * GB]


def test_in_a_container_the_own_group_may_be_the_root(system: tuple[Path, Path]) -> None:
    root, proc = system
    member_of(proc, "0::/docker/abc\n")  # a path that the container does not see
    limit(root, "memory.max", str(2 * GB))
    assert list(control_group_limits(root, proc)) == [2 * GB]


def test_a_process_has_the_narrowest_limit_of_all_and_without_one_the_machines_memory(
    system: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, proc = system
    assert host_memory_bytes(*system) == MACHINE  # no file says in which groups it is
    member_of(proc, "0::/a/b\n")
    limit(root / "a" / "b", "memory.max", "max")
    assert host_memory_bytes(*system) == MACHINE
    limit(root / "a", "memory.max", "5000")
    assert host_memory_bytes(*system) == 5000
    monkeypatch.setattr(resource, "getrlimit", limited_to(3000))
    assert host_memory_bytes(*system) == 3000


def test_the_innermost_group_comes_first(system: tuple[Path, Path]) -> None:
    root, proc = system
    assert own_control_groups(*system) == []
    member_of(proc, "9:name=systemd:/x\n0::/a/b\n")
    assert own_control_groups(*system) == [root / "a" / "b", root / "a", root]


def test_the_narrowest_limit_of_the_groups_above_us_counts_without_page_cache(system: tuple[Path, Path]) -> None:
    root, proc = system
    assert control_group_room(*system) is None  # no file says in which groups it is
    for group, most, current, cache in (("", "max", 0, 0), ("a", "1000", 700, 200), ("a/b", "900", 100, 0)):
        limit(root / group, "memory.max", most)
        limit(root / group, "memory.current", str(current))
        limit(root / group, "memory.stat", f"anon 1\ninactive_file {cache}")
    member_of(proc, "12:pids:/x\n0::/a/b\n")
    assert control_group_room(*system) == 500
    member_of(proc, "0::/\n")
    assert control_group_room(*system) is None
    member_of(proc, "0::/a\n")
    assert control_group_room(root / "none", proc) is None
