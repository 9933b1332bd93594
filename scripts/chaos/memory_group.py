"""The kernel's account of what a node's processes use together, and a limit to it: control groups, version 1 or 2.

At the limit the kernel first drops what it can read again. Then it writes pages to the machine's swap where the group
may use that, or ends the largest process of the group.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

ROOTS: Final = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))  # of version 1, of version 2
JOINING: Final = 'echo $$ > "$0" && exec "$@"'
LIMIT_TRIES: Final = 20
LEAVING_SECONDS: Final = 10.0  # for the last process of a group


class NoMemoryGroupsError(Exception):
    """This machine or user cannot make one; why."""


class MemoryGroup:
    """One group; its folder exists already."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        is_first = (folder / "memory.limit_in_bytes").exists()
        self._limit = folder / ("memory.limit_in_bytes" if is_first else "memory.max")
        self._used = folder / ("memory.usage_in_bytes" if is_first else "memory.current")
        self._kills = folder / ("memory.oom_control" if is_first else "memory.events")
        self._unlimited = "-1" if is_first else "max"
        self._swap = folder / ("memory.swappiness" if is_first else "memory.swap.max")
        self._swaps = "100" if is_first else "max"

    @property
    def kills(self) -> int:
        """How many processes the kernel has ended."""
        lines = self._kills.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns the command that runs ``command`` and what it starts in this group."""
        return ["sh", "-c", JOINING, str(self._folder / "cgroup.procs"), *command]

    def bound(self) -> None:
        """Gives the group no more than it has now, and no swap. Raises ``OSError`` where it grows all the time."""
        self._may_swap("0")
        self._limit_to(lambda: self._used_bytes)

    def squeeze(self, share: float) -> None:
        """Leaves the group ``share`` of the memory that it has now, and what the kernel cannot free; the rest goes to
        the machine's swap. Raises ``OSError`` where it grows all the time."""
        self._may_swap(self._swaps)
        kept = int(self._used_bytes * share)
        try:
            self._limit_to(lambda: kept)
        except OSError:
            self._limit_to(lambda: self._used_bytes)

    def free(self) -> None:
        self._limit.write_text(self._unlimited, encoding="ascii")

    @property
    def _used_bytes(self) -> int:
        return int(self._used.read_text(encoding="ascii"))

    def _limit_to(self, wanted: Callable[[], int]) -> None:
        for remaining in reversed(range(LIMIT_TRIES)):
            try:
                self._limit.write_text(str(wanted()), encoding="ascii")
            except OSError as error:  # version 1 refuses a limit below what is used, after it has freed what it could
                if error.errno != errno.EBUSY or not remaining:
                    raise
            else:
                return

    def _may_swap(self, how: str) -> None:
        if self._swap.exists():  # the kernel may keep no account of swap
            self._swap.write_text(how, encoding="ascii")


def free_swap_bytes() -> int:
    """Returns how much of the machine's swap is free."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("SwapFree:"))


@contextmanager
def memory_groups(name: str, count: int) -> Iterator[list[MemoryGroup]]:
    """Yields so many groups, which are gone afterwards. Raises ``NoMemoryGroupsError``."""
    root = next((root for root in ROOTS if (root / "cgroup.procs").exists()), ROOTS[-1])
    with ExitStack() as stack:
        groups = []
        for number in range(count):
            folder = root / f"{name}-{number}"
            try:
                folder.mkdir()
            except OSError as error:
                raise NoMemoryGroupsError(f"{error}") from error
            stack.callback(_remove, folder)
            if not any((folder / file).exists() for file in ("memory.limit_in_bytes", "memory.max")):
                raise NoMemoryGroupsError(f"{root} accounts for no memory")
            groups.append(MemoryGroup(folder))
        yield groups


def _remove(folder: Path) -> None:
    ends = time.monotonic() + LEAVING_SECONDS
    while True:
        try:
            folder.rmdir()
        except OSError:  # a process of it is still ending
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)
        else:
            return
