"""A share of a core for processes, held by a control group, as a slower machine of their own. Linux and root only.

In every ``PERIOD_SECONDS`` the group's processes together compute for at most that part of it, on whatever core is
free; what they do not use is lost. They come before other programs of this computer, so that they get it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PERIOD_SECONDS: Final = 0.01  # as short as that a message waits little for the machine's next turn
_ROOT: Final = Path("/sys/fs/cgroup")
_FIRST: Final = 16  # × the weight of a program outside


@dataclass(frozen=True, slots=True)
class ProcessorShare:
    """One group."""

    folder: Path
    cores: float

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns the command that runs ``command`` in the group, with all that it starts."""
        return ["sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$0" "$@"', *command]


@contextmanager
def processor_share(name: str, cores: float) -> Iterator[ProcessorShare]:
    """Yields a new group with ``cores`` of a core, at most 1 of each. Leave it once its processes have ended. Raises
    ``OSError`` where no group can be made."""
    period, quota = round(PERIOD_SECONDS * 1e6), round(cores * PERIOD_SECONDS * 1e6)
    unified = (_ROOT / "cgroup.controllers").exists()
    folder = (_ROOT if unified else _ROOT / "cpu") / f"{name}-{os.getpid()}"
    folder.mkdir()
    try:
        if unified:
            (folder / "cpu.max").write_text(f"{quota} {period}")
            (folder / "cpu.weight").write_text(str(100 * _FIRST))
        else:
            (folder / "cpu.cfs_period_us").write_text(str(period))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))
            (folder / "cpu.shares").write_text(str(1024 * _FIRST))
        yield ProcessorShare(folder, cores)
    finally:
        folder.rmdir()
