"""How many threads compute a step: what is faster now, measured again and again on the steps themselves.

Two threads that both have a core are faster than one. Where other programs use the cores, each operation waits for a
thread that has none, several hundred times a step, and one thread is faster. Which holds changes within minutes.

A trial runs blocks of steps in the order present, other, other, present, so that a steady change of the steps' length
counts for both alike. The other count is taken if its blocks were ``ADVANTAGE`` faster. The wait until the next trial
doubles while the answer stays the same: trials take at most one step in nine, and soon one in sixty-five.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch

BLOCK_STEPS: Final = 4  # at least, in each block of a trial; the first after a change is not counted
BLOCK_SECONDS: Final = 0.025  # at least: several time slices of a busy core
ADVANTAGE: Final = 0.05
FIRST_WAIT: Final = 8  # times as long as the trial before
LONGEST_WAIT: Final = 64
SHORT_PASS_TOKENS: Final = 1024  # of prompts in one pass; up to so many, it waits for threads as a step does


class ThreadTrials:
    """The decision: a function of the steps' durations alone. ``counts`` ascend; the last one is tried first."""

    def __init__(self, counts: tuple[int, ...]) -> None:
        self._counts = counts
        self._present = len(counts) - 1
        self._downwards = True
        self._wait_factor = FIRST_WAIT
        self._waiting_seconds = 0.0
        self._warming = BLOCK_STEPS  # the first steps compile kernels
        self._begin_trial()

    @property
    def threads(self) -> int:
        """The number of threads of the next step."""
        in_trial = self._waiting_seconds <= 0 and self._warming == 0
        return self._counts[self._other if in_trial and self._block in (1, 2) else self._present]

    def took(self, seconds: float) -> None:
        """A step with ``threads`` threads took so long."""
        if len(self._counts) == 1:
            return
        if self._warming:
            self._warming -= 1
        elif self._waiting_seconds > 0:
            self._waiting_seconds -= seconds
        else:
            self._measured(seconds)

    def _begin_trial(self) -> None:
        if not 0 <= self._present + (-1 if self._downwards else 1) < len(self._counts):
            self._downwards = not self._downwards
        self._other = self._present + (-1 if self._downwards else 1)
        self._block = self._steps = 0
        self._block_seconds = self._trial_seconds = 0.0
        self._mean_seconds: list[float] = []  # of a step, by block

    def _measured(self, seconds: float) -> None:
        self._trial_seconds += seconds
        self._steps += 1
        if self._steps > 1:
            self._block_seconds += seconds
        if self._steps < BLOCK_STEPS or self._block_seconds < BLOCK_SECONDS:
            return
        self._mean_seconds.append(self._block_seconds / (self._steps - 1))
        self._block, self._steps, self._block_seconds = self._block + 1, 0, 0.0
        if self._block == 4:
            self._decide()

    def _decide(self) -> None:
        first, second, third, fourth = self._mean_seconds
        if second + third < (1 - ADVANTAGE) * (first + fourth):
            self._present, self._wait_factor = self._other, FIRST_WAIT
        else:
            self._downwards = not self._downwards
            self._wait_factor = min(2 * self._wait_factor, LONGEST_WAIT)
        self._waiting_seconds = self._wait_factor * self._trial_seconds
        self._begin_trial()


class StepThreads:
    """Sets torch's threads for the steps of one engine, as ``ThreadTrials`` decides, and restores them afterwards.

    Without ``adapting`` it leaves them alone. In float32 a step has the same bits with one thread as with two (MKL's
    products by a variable of ``node.compute_environment``, oneDNN's at the shapes tried, up to 8,960 inputs), so that a
    round that is repeated stays the same; in bfloat16 on a CPU it does not, and the engine does not adapt there. A
    learner on another thread of the process keeps its own number: OpenMP has one for each thread, which torch sets when
    the thread first computes.
    """

    def __init__(self, *, adapting: bool, clock: Callable[[], float] = time.perf_counter) -> None:
        self._adapting, self._clock = adapting, clock
        self._trials = ThreadTrials((1,))
        self._most = 1

    @contextmanager
    def chosen(self) -> Iterator[None]:
        """Steps are taken within this; the process's number of threads on entry is the most that is used."""
        before = torch.get_num_threads()
        if self._adapting and before != self._most:
            self._most = before
            self._trials = ThreadTrials(thread_counts(before))
        try:
            yield
        finally:
            if torch.get_num_threads() != before:
                torch.set_num_threads(before)

    def before_prompts(self, tokens: int) -> None:
        """Sets the threads of a pass over so many tokens of prompts: a short one's as a step's, else the most."""
        if self._most > 1:
            self._set(self._trials.threads if tokens <= SHORT_PASS_TOKENS else self._most)

    @contextmanager
    def step(self, length: float = 1.0) -> Iterator[None]:
        """``length``: how long this step is expected to be against others of the same rows."""
        if self._most == 1:
            yield
            return
        self._set(self._trials.threads)
        began = self._clock()
        yield
        self._trials.took((self._clock() - began) / length)

    @staticmethod
    def _set(threads: int) -> None:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def thread_counts(most: int) -> tuple[int, ...]:
    """Returns the numbers that are tried: 1, powers of two, and ``most``."""
    counts = {1, most} | {2**power for power in range(1, most.bit_length()) if 2**power < most}
    return tuple(sorted(counts))
