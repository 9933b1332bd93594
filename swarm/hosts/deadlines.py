"""No call to a peer waits without end: a block that outlives its deadline raises ``DeadlineError``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from protocol.errors import DeadlineError


@contextmanager
def deadline(seconds: float, attempt: str) -> Iterator[None]:
    """Cancels the block after ``seconds`` and raises ``DeadlineError`` that says what was attempted."""
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise DeadlineError(f"{attempt}: no answer within {seconds:g} s")
