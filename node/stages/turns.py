"""Which of several threads computes: one at a time, in a fixed order, so that equal passes add up equal sums.

Each thread has one micro-batch under way. While it waits for other machines the one that is next in the order computes,
and no other one, whether or not what it needs is there. So what is added to a gradient, and when, follows from the
micro-batches alone, and not from which machine was faster.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


class TurnsEnded(Exception):
    """Another thread has failed: this one's work is of no use."""


class Turns:
    def __init__(self, order: Sequence[int]) -> None:
        """``order``: the micro-batch that computes, turn by turn."""
        self._order = order
        self._turn = 0
        self._changed = threading.Condition()
        self._gone_back: Counter[int] = Counter()  # by machine: how many have had their turn there
        self.failure: BaseException | None = None

    def run(self, work: Callable[[], None]) -> None:
        """Runs ``work`` on the calling thread, which computes within ``computing`` alone. What it raises ends all, and
        is their ``failure``."""
        try:
            work()
        except TurnsEnded:
            pass
        except BaseException as error:  # noqa: BLE001 - whoever waits for the threads raises it
            with self._changed:
                self.failure = self.failure or error
                self._changed.notify_all()

    @contextmanager
    def computing(self, micro_batch: int) -> Iterator[None]:
        """Within the context the micro-batch has its turns, all but the last of which end with ``waiting``."""
        self._wait_for(lambda: self._due == micro_batch)
        yield
        self._end_turn()

    @contextmanager
    def waiting(self, micro_batch: int) -> Iterator[None]:
        """Within the context others compute."""
        self._end_turn()
        yield
        self._wait_for(lambda: self._due == micro_batch)

    @contextmanager
    def at_machine(self, machine: int, micro_batch: int) -> Iterator[None]:
        """Within the context ``machine`` is asked for no other backward pass; they come in the order of micro-batches,
        from 0."""
        self._wait_for(lambda: self._gone_back[machine] == micro_batch)
        yield
        with self._changed:
            self._gone_back[machine] += 1
            self._changed.notify_all()

    @property
    def _due(self) -> int | None:
        return self._order[self._turn] if self._turn < len(self._order) else None

    def _end_turn(self) -> None:
        with self._changed:
            self._turn += 1
            self._changed.notify_all()

    def _wait_for(self, due: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None or due())
            if self.failure is not None:
                raise TurnsEnded
