"""Limits of main memory: the machine's, those of control groups of both versions, and the process's own."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from node.fit.footprint import Footprint, Part, Phase
from node.fit.machine import LIMIT_SHARE, MACHINE_SHARE, Limit, cgroup_limits, disk_free_bytes, host_limits
from tests.node.fit.shapes import GB, cpu, gpu


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
    assert list(cgroup_limits(root, proc)) == [8 * GB]


def test_version_1_counts_the_memory_controller_alone_and_not_its_number_for_no_limit(
    system: tuple[Path, Path],
) -> None:
    root, proc = system
    member_of(proc, "8:pids:/a\n4:memory:/docker/abc\n2:cpu,cpuacct:/a\n0::/\n")
    limit(root / "memory" / "docker" / "abc", "memory.limit_in_bytes", str(4 * GB))
    limit(root / "memory", "memory.limit_in_bytes", "9223372036854771712")
    limit(root / "pids" / "a", "memory.limit_in_bytes", "1000")
    assert list(cgroup_limits(root, proc)) == [4 * GB]


def test_in_a_container_the_own_group_may_be_the_root(system: tuple[Path, Path]) -> None:
    root, proc = system
    member_of(proc, "0::/docker/abc\n")  # a path that the container does not see
    limit(root, "memory.max", str(2 * GB))
    assert list(cgroup_limits(root, proc)) == [2 * GB]


def test_a_system_without_control_groups_has_its_own_memory_as_limit(system: tuple[Path, Path]) -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert host_limits(*system)[0] == Limit("machine", total, MACHINE_SHARE)
    assert not list(cgroup_limits(*system))


def test_limits_of_the_process_itself_count(system: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def getrlimit(kind: int) -> tuple[int, int]:
        return (3 * GB if kind == resource.RLIMIT_DATA else resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    monkeypatch.setattr(resource, "getrlimit", getrlimit)
    assert host_limits(*system)[1:] == (Limit("RLIMIT_DATA", 3 * GB, LIMIT_SHARE),)


def test_the_narrowest_limit_counts_after_what_is_left_for_others() -> None:
    node = cpu(0, limits=(Limit("machine", 10 * GB, 0.85), Limit("control group", 9 * GB, 0.95)))
    assert node.narrowest.name == "machine" and node.host_bytes == int(8.5 * GB)


def test_excess_is_that_of_the_place_that_lacks_more() -> None:
    footprint = Footprint((Phase("learning", (Part("a", 9 * GB, "device"), Part("b", 3 * GB, "host"))),), 0, 0)
    assert gpu(8 * GB, 10 * GB).excess_bytes(footprint) == GB
    assert gpu(10 * GB, 2 * GB).excess_bytes(footprint) == GB
    assert gpu(10 * GB, 10 * GB).excess_bytes(footprint) < 0


def test_free_disk_is_that_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    assert disk_free_bytes(tmp_path / "not" / "there") > 0
