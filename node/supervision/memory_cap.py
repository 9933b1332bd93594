"""Holds a node to ``machine.max_memory``: the plan keeps below it, and a learner that grows above it is started again.

The kernel's own limits (a control group, systemd's MemoryMax) hold at every moment. This one looks every few seconds at
resident memory, needs no privilege, and works wherever the system reports that.
"""

from __future__ import annotations

from typing import Final

from node.events import Usage
from node.quantities import size

LOOKS_ABOVE: Final = 3  # in a row: a short peak, such as a checkpoint's copy, ends nothing


class MemoryCap:
    """Sees every ``Usage``. ``max_bytes`` None: no limit."""

    def __init__(self, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        self._above = 0

    def exceeded_by(self, usage: Usage) -> str | None:
        """Returns what was exceeded, in words, once the node has been above its limit for ``LOOKS_ABOVE`` looks."""
        total = sum(part or 0 for part in (usage.supervisor_bytes, usage.learner_bytes, usage.swarm_bytes))
        if self._max_bytes is None or usage.learner_bytes is None or total <= self._max_bytes:
            self._above = 0
            return None
        self._above += 1
        if self._above < LOOKS_ABOVE:
            return None
        self._above = 0
        return f"the node held {size(total)}, above machine.max_memory = {size(self._max_bytes)}"
