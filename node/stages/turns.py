"""Which of several threads computes: one at a time, in a fixed order, so that equal passes add up equal sums.

Each thread has one micro-batch under way. While it waits for another machine it gives its turn to the next in the ring,
whether or not that one has its answer yet. So what is added to a gradient, and when, follows from the micro-batches
alone, and not from which machine was faster.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count


class TurnsEnded(Exception):
    """Another thread has failed: this one's work is of no use."""


class Turns:
    def __init__(self, threads: int) -> None:
        self._ring = deque(range(threads))
        self._changed = threading.Condition()
        self._tickets = count()
        self._gone_back: Counter[int] = Counter()  # by machine: how many have had their turn there
        self.failure: BaseException | None = None

    def run(self, thread: int, work: Callable[[], None]) -> None:
        """Runs ``work`` on the calling thread, which computes but for what is within ``waiting``. What it raises ends
        all, and is their ``failure``."""
        try:
            self._wait_for(lambda: self._ring[0] == thread)
            work()
        except TurnsEnded:
            pass
        except BaseException as error:  # noqa: BLE001 - whoever waits for the threads raises it
            with self._changed:
                self.failure = self.failure or error
        finally:
            with self._changed:
                self._ring.remove(thread)
                self._changed.notify_all()

    @contextmanager
    def waiting(self, thread: int) -> Iterator[None]:
        """Within the context the others compute."""
        with self._changed:
            self._ring.rotate(-1)
            self._changed.notify_all()
        yield
        self._wait_for(lambda: self._ring[0] == thread)

    def ticket(self) -> int:
        """Returns the place of the calling thread's backward pass among all; it computes while it asks."""
        return next(self._tickets)

    @contextmanager
    def at_machine(self, machine: int, ticket: int) -> Iterator[None]:
        """Within the context no other backward pass is at ``machine``; they come in the order of their tickets."""
        self._wait_for(lambda: self._gone_back[machine] == ticket)
        yield
        with self._changed:
            self._gone_back[machine] += 1
            self._changed.notify_all()

    def _wait_for(self, due: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None or due())
            if self.failure is not None:
                raise TurnsEnded
