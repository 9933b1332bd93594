"""What share of a core a new process gets now, beside whatever else runs: measured, by processes that compute.

Counting does not tell it. The average of runnable processes lags by a minute, and systems divide cores by sessions,
priorities and quotas: 55 runnable processes on two cores, some of them of one session, left as much as 11 would have.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

MEASURED_SECONDS: Final = 1.0
_COMPUTE: Final = f"""
import time
began, used = time.perf_counter(), time.process_time()
while (passed := time.perf_counter() - began) < {MEASURED_SECONDS}:
    pass
print((time.process_time() - used) / passed)
"""


def measured_core_shares(processes: int) -> list[float]:
    """Runs so many processes at once for a second, each in a session of its own, as a node is. Returns what share of a
    core each of them got: 1 on a quiet machine that has as many cores."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _COMPUTE],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
            )
            for _ in range(processes)
        ]
        return [float(process.communicate()[0]) for process in started]


def others_beside(shares: Sequence[float], cores: int) -> float:
    """Returns how many other processes, each with a claim like ours, would leave these ``shares`` of ``cores`` to as
    many of ours. Where ours do not fill the cores, it counts what is left too, which slows none of them."""
    return max(0.0, cores * len(shares) / sum(shares) - len(shares))
