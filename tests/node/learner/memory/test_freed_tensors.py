"""Which memory a process keeps after it has freed blocks between 1 and 4 MiB: below one that it still holds, and at the
end of its heap."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from node.compute_environment import COMPUTE_DEFAULTS

MIB = 1 << 20
PROGRAM = """
import sys
from node.learner.memory.device_memory import return_freed_tensors
return_freed_tensors(int(sys.argv[1]))
blocks = [bytearray(2 << 20) for _ in range(64)]
held = [bytearray(1 << 16) for _ in range(64)]  # more than fit into gaps below the blocks
del blocks
print(int(open("/proc/self/statm").read().split()[1]) * 4096)
"""
REPEATED = """
import resource
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for n in range(20):
    if n == 10: before = faults()
    blocks = [bytearray(2 << 20) for _ in range(8)]
    del blocks
print(faults() - before)
"""


def resident_bytes(parameters: int, **environment: str) -> int:
    return int(
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(parameters)],
            env={**os.environ, **COMPUTE_DEFAULTS, **environment},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_learner_of_a_large_model_gives_freed_blocks_of_two_mebibytes_back() -> None:
    small, large = resident_bytes(500_000), resident_bytes(500_000_000)
    assert small - large > 100 * MIB
    assert resident_bytes(500_000_000, MALLOC_MMAP_THRESHOLD_=str(8 * MIB)) - large > 100 * MIB  # a user's own choice


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_blocks_freed_at_the_end_of_the_heap_are_taken_again_without_page_faults() -> None:
    def faults(environment: dict[str, str]) -> int:
        environment = {**os.environ, **environment}
        answer = subprocess.run([sys.executable, "-c", REPEATED], env=environment, capture_output=True, check=True)
        return int(answer.stdout)

    trimmed = COMPUTE_DEFAULTS | {"MALLOC_TRIM_THRESHOLD_": str(128 << 10)}  # glibc's own
    assert faults(trimmed) > 10 * 8 * (2 * MIB // 4096) // 2
    assert faults(dict(COMPUTE_DEFAULTS)) < 100
