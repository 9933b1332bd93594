"""Machines of less than a processor: a control group for each, with a quota of CPU time. Linux and root only."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.bench.common.slow_network import NoSlowNetworkError

PERIOD_MICROSECONDS = 100_000
FIRST = Path("/sys/fs/cgroup/cpu")  # version 1
SECOND = Path("/sys/fs/cgroup")
WEIGHT = 8  # times the share of other programs: the quota is the limit, and not who else runs


@dataclass(frozen=True)
class ProcessorShare:
    """A control group. What is started by ``command``, and its children, get ``cores`` of CPU time together."""

    folder: Path
    cores: float

    def command(self, command: Sequence[str]) -> list[str]:
        joined = "echo $$ > {}; exec {}".format(shlex.quote(str(self.folder / "cgroup.procs")), shlex.join(command))
        return ["sh", "-c", joined]

    @contextmanager
    def holding(self, process: int) -> Iterator[None]:
        """Within the context a process has the share; afterwards it is where it was, if it still runs."""
        before = _group_of(process)
        _put(self.folder, process)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                _put(before, process)


def _put(folder: Path, process: int) -> None:
    (folder / "cgroup.procs").write_text(str(process))


def _group_of(process: int) -> Path:
    """Returns the folder of the control group that a process has now."""
    for line in Path(f"/proc/{process}/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return FIRST / path.removeprefix("/")
        if number == "0":
            found = SECOND / path.removeprefix("/")
    return found


@contextmanager
def processor_shares(cores: Sequence[float]) -> Iterator[list[ProcessorShare]]:
    """Yields a share for each of ``cores``. Raises ``NoSlowNetworkError`` where that is impossible."""
    is_first = FIRST.is_dir()
    root, made = FIRST if is_first else SECOND, list[ProcessorShare]()
    try:
        try:
            for number, each in enumerate(cores):
                folder = root / f"starling-{os.getpid()}-{number}"
                folder.mkdir()
                made.append(ProcessorShare(folder, each))
                _limit(folder, each, is_first=is_first)
        except OSError as error:
            raise NoSlowNetworkError(f"no control groups can be made here: {error}") from error
        yield made
    finally:
        for share in made:
            with contextlib.suppress(OSError):  # a process that still ends keeps it
                share.folder.rmdir()


def _limit(folder: Path, cores: float, *, is_first: bool) -> None:
    quota = int(cores * PERIOD_MICROSECONDS)
    if is_first:
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
        (folder / "cpu.cfs_quota_us").write_text(str(quota))
        (folder / "cpu.shares").write_text(str(1024 * WEIGHT))
    else:
        (folder / "cpu.max").write_text(f"{quota} {PERIOD_MICROSECONDS}")
        (folder / "cpu.weight").write_text(str(100 * WEIGHT))
