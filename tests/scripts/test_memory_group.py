"""A group of processes that the kernel keeps within their memory. Needs a user who may make one: root, as a rule."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.chaos.memory_group import MemoryGroup, NoMemoryGroupsError, memory_groups

# It takes 30 MiB when it is told to.
HUNGRY = "print(flush=True); input(); kept = [bytes([n]) * 2**20 for n in range(1, 31)]; print('has it')"


@pytest.fixture(scope="module")
def group() -> Iterator[MemoryGroup]:
    try:
        with memory_groups(f"starling-test-{os.getpid()}", 1) as (found,):
            yield found
    except NoMemoryGroupsError as error:
        pytest.skip(str(error))


def hungry(group: MemoryGroup, *, bounded: bool) -> tuple[int, str]:
    """Runs the hungry process; returns its exit status and what it said in the end."""
    command = group.command([sys.executable, "-c", HUNGRY])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        if bounded:
            group.bound()
        process.stdin.write("\n")
        process.stdin.close()
        said = process.stdout.read().strip()
    group.free()
    return process.returncode, said


@pytest.mark.parametrize(
    ("limit", "used", "swap", "unlimited", "may_swap"),
    [
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.swappiness", "-1", "100"),
        ("memory.max", "memory.current", "memory.swap.max", "max", "max"),
    ],
    ids=["version 1", "version 2"],
)
def test_a_bound_group_gets_no_swap_and_a_squeezed_one_keeps_its_share(
    tmp_path: Path, limit: str, used: str, swap: str, unlimited: str, may_swap: str
) -> None:
    for name, text in ((limit, unlimited), (used, "1001\n"), (swap, "60")):
        (tmp_path / name).write_text(text)
    group = MemoryGroup(tmp_path)

    def written() -> tuple[str, str]:
        return (tmp_path / limit).read_text().strip(), (tmp_path / swap).read_text()

    group.bound()
    assert written() == ("1001", "0")
    group.free()
    group.squeeze(0.3)
    assert written() == ("300", may_swap)
    group.free()
    assert written()[0] == unlimited


def test_a_process_that_wants_more_than_its_group_has_is_ended_by_the_kernel_and_a_later_one_is_not(
    group: MemoryGroup,
) -> None:
    assert hungry(group, bounded=True) == (-signal.SIGKILL, "")
    assert group.kills == 1
    assert hungry(group, bounded=False) == (0, "has it")
    assert group.kills == 1
