"""Memory that the swarm process has freed is used again, without asking the system for it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

COUNTED = """
import resource, sys
from swarm.process_start import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    parts = [bytes(1 << 16) for _ in range(16)]
    del parts
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_taken(how: str) -> int:
    """Returns the pages that 200 times a MiB, in parts, took from the system, in a process of its own
    with the allocator's own defaults."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    ended = subprocess.run([sys.executable, "-c", COUNTED, how], stdout=subprocess.PIPE, check=True, env=environment)
    return int(ended.stdout)


@pytest.mark.processes
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_memory_that_was_freed_is_not_taken_from_the_system_again() -> None:
    assert pages_taken("kept") * 10 < pages_taken("returned")
