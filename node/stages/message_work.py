"""Processor time of other threads and processes, so far as it can be read: on Linux. Elsewhere it counts as none."""

from __future__ import annotations

import sys
import threading
import time
from typing import Final

_WHOLE_PROCESS: Final = 2  # with the inverted number of a process: its clock, as ``clock_getcpuclockid`` has it


def process_seconds(process: int | None) -> float:
    """Returns the processor time that a process has used; 0 where it is gone."""
    if process is None or sys.platform != "linux":
        return 0.0
    try:
        return time.clock_gettime((~process << 3) | _WHOLE_PROCESS)
    except OSError:
        return 0.0


def thread_seconds(thread: threading.Thread) -> float:
    """Returns the processor time that a running thread of this process has used."""
    if thread.ident is None or sys.platform != "linux":
        return 0.0
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
