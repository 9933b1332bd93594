"""How torch's threads wait for each other.

By default they spin, which on a machine that does other work too (another node, a browser) makes each wait for a thread
that has no core: rounds of the built-in model took 2 s instead of 0.1 s on two cores with ten runnable processes.
Sleeping costs microseconds where nothing else runs. The environment wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

WAITING: Final = {"OMP_WAIT_POLICY": "PASSIVE"}


def with_waiting_threads(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that computes with torch; it is read when torch is imported."""
    return {**WAITING, **environment}
