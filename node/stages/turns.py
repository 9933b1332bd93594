"""Which of several threads computes: one at a time, in a fixed order, so that equal passes add up equal sums.

Each thread has one work under way: a micro-batch of the learner's pass, or a batch of rows that are sampled. While it
waits for other machines the one that is next in the order computes, and no other one, whether or not what it needs is
there. So what is added to a gradient, and when, follows from the works alone, and not from which machine was faster.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager


class TurnsEnded(Exception):
    """Another thread has failed: this one's work is of no use."""


class Turns:
    def __init__(self, order: Iterable[int], works: int) -> None:
        """``order``: which of ``works`` computes, turn by turn; those that have ended are left out."""
        self._order, self._works = iter(order), works
        self._ended: set[int] = set()
        self._due = next(self._order, None)
        self._changed = threading.Condition()
        self._gone_back: Counter[int] = Counter()  # by machine: how many have had their turn there
        self._failure: BaseException | None = None

    def run(self, runs: Sequence[Callable[[], None]], name: str) -> None:
        """Calls each on a thread of its own, which computes within ``computing`` alone. What one raises ends all, and
        is raised."""
        threads = [
            threading.Thread(target=self._run, args=(each,), name=f"{name} {number}")
            for number, each in enumerate(runs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    @contextmanager
    def computing(self, work: int) -> Iterator[None]:
        """Within the context the work has its turns, all but the last of which end with ``waiting``."""
        self._wait_for(lambda: self._due == work)
        yield
        self._ended.add(work)
        self._end_turn()

    @contextmanager
    def waiting(self, work: int) -> Iterator[None]:
        """Within the context others compute."""
        self._end_turn()
        yield
        self._wait_for(lambda: self._due == work)

    @contextmanager
    def at_machine(self, machine: int, micro_batch: int) -> Iterator[None]:
        """Within the context ``machine`` is asked for no other backward pass; they come in the order of micro-batches,
        from 0."""
        self._wait_for(lambda: self._gone_back[machine] == micro_batch)
        yield
        with self._changed:
            self._gone_back[machine] += 1
            self._changed.notify_all()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except TurnsEnded:
            pass
        except BaseException as error:  # noqa: BLE001 - ``run`` raises it
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def _end_turn(self) -> None:
        with self._changed:
            go_on = len(self._ended) < self._works
            self._due = next((each for each in self._order if each not in self._ended), None) if go_on else None
            self._changed.notify_all()

    def _wait_for(self, due: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or due())
            if self._failure is not None:
                raise TurnsEnded
