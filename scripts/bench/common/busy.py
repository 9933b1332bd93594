"""Other programs on the same cores: processes that compute without end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Runs ``count`` processes that always want a core, and ends them on leaving."""
    with ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(process.kill)
        yield
