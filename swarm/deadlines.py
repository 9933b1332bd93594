"""Deadlines for calls to peers: a block that takes longer raises ``DeadlineError``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from protocol.errors import DeadlineError


@contextmanager
def deadline(seconds: float, attempt: str) -> Iterator[None]:
    """Cancels the block after ``seconds`` and raises a ``DeadlineError`` that names ``attempt``."""
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise DeadlineError(f"{attempt}: no answer within {seconds:g} s")
