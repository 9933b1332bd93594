"""The environment of processes that compute with torch. What the user's own environment sets, wins.

GOMP_SPINCOUNT: torch's threads spin by default while they wait for each other, which on a machine that does other work
too (another node, a browser) makes each wait for a thread that has no core: rounds of the built-in model took 2 s
instead of 0.1 s on two cores with ten runnable processes. Asleep at once they take microseconds to wake, hundreds of
times a pass: a small model learns at half the speed. This long a spin bridges the gap between two operations and no
more. Where torch comes with another OpenMP than GNU's, OMP_WAIT_POLICY says the nearest thing.

ONEDNN_PRIMITIVE_CACHE_CAPACITY: oneDNN keeps the code it generates for the last 1024 shapes of matrix product, and
sampling goes through nearly that many, one for each number of rows still alive: some 200 MB. A sixteenth is as fast.

THP_MEM_ALLOC_ENABLE: tensors of 2 MiB and more lie in huge pages where the system has them. A new tensor of 40 MB takes
15 ms instead of 65 (page faults of a virtual machine), which is most of the time of an outer step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

COMPUTE_DEFAULTS: Final = {
    "GOMP_SPINCOUNT": "2000",
    "OMP_WAIT_POLICY": "PASSIVE",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "THP_MEM_ALLOC_ENABLE": "1",
}


def compute_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` with our defaults under it; it is read when torch is imported."""
    return {**COMPUTE_DEFAULTS, **environment}
