"""What a plan may fill of main memory and of a GPU."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from node.fit.footprint import Footprint, Part, Phase
from node.fit.machine import LIMIT_SHARE, MACHINE_SHARE, Limit, disk_free_bytes, host_limits
from tests.node.fit.shapes import GB, cpu, gpu, limited_to


def test_of_the_machine_less_may_be_filled_than_of_limits_that_were_set_for_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/\n")
    (tmp_path / "memory.max").write_text(str(9 * GB))
    monkeypatch.setattr(resource, "getrlimit", limited_to(3 * GB))
    machine, group, own = host_limits(tmp_path, tmp_path)
    assert machine == Limit("machine", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), MACHINE_SHARE)
    assert (group, own) == (Limit("control group", 9 * GB, LIMIT_SHARE), Limit("RLIMIT_DATA", 3 * GB, LIMIT_SHARE))


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
