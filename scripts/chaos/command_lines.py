"""The commands that a supervisor gives a learner that stands in for the real one."""

from __future__ import annotations

import os
import selectors


class CommandLines:
    """Standard input, line by line, without a thread."""

    def __init__(self) -> None:
        self._pending = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)

    def line(self, seconds: float | None) -> bytes | None:
        """Returns the next line, empty at the end of input; None after ``seconds`` without one."""
        while b"\n" not in self._pending:
            if not self._selector.select(seconds):
                return None
            if not (part := os.read(0, 1 << 16)):
                return b""
            self._pending += part
        line, _, self._pending = self._pending.partition(b"\n")
        return line
