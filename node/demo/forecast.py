"""How long each part of the demonstration takes: by constants before anything ran, then as its parts themselves show.

The constants are those of the built-in models, from a demonstration of three of them on two quiet AVX-512 cores.
All of it is corrected once the first answers are measured, and after each part.

Processes share the cores with whatever else runs, and counting does not tell what share a new one gets: the average of
runnable processes lags by a minute, and systems divide cores by sessions, priorities and quotas: 55 runnable processes
on two cores, some of them of one session, left as much as 11 would have. So processes that compute measure it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

LOAD_CORE_SECONDS: Final = 3.5  # to import and load one model that is measured
ANSWER_CORE_SECONDS: Final = 0.0006  # to generate and score one answer of a measurement
NODE_CORE_SECONDS: Final = 6.0  # to start one node, to connect it, and to end it with a checkpoint
ALONE_SHARE: Final = 0.5  # of the time of learning together, for as many tokens: nothing of peers is learnt from
OTHERS_WEIGHT: Final = 1.4  # what another process costs, of its share: a node's processes wait for each other, too
BUSY_FROM: Final = 1.5  # times as slow as without other programs
SHOWN_SHARE: Final = 0.1  # of a measurement's answers, after which its speed is known: the first ones are slow
ANSWERS_A_PROMPT: Final = 30  # six tasks, one greedy answer and four sampled ones
WHOLE_MINUTES_FROM: Final = 90.0
MEASURED_SECONDS: Final = 1.0
_COMPUTE: Final = f"""
import time
began, used = time.perf_counter(), time.process_time()
while (passed := time.perf_counter() - began) < {MEASURED_SECONDS}:
    pass
print((time.process_time() - used) / passed)
"""
MACHINE: Final = {False: "", True: ", as busy as this machine is"}


class DemoPart(StrEnum):
    BEFORE = "measuring before training"
    TOGETHER = "learning together"
    MEASURED_TOGETHER = "measuring after learning together"
    ALONE = "learning alone, with as many tokens each"
    MEASURED_ALONE = "measuring after learning alone"


MEASUREMENTS: Final = frozenset({DemoPart.BEFORE, DemoPart.MEASURED_TOGETHER, DemoPart.MEASURED_ALONE})


@dataclass(frozen=True, slots=True)
class Measuring:
    """How far one model's measurement is. Seconds are since the measurement's start."""

    model: str
    answers: int
    answers_in_all: int
    loaded_seconds: float
    seconds: float

    @property
    def whole_seconds(self) -> float | None:
        """How long it takes in all, as its answers so far show; None before there are enough of them."""
        if self.answers < SHOWN_SHARE * self.answers_in_all:
            return None
        return self.loaded_seconds + (self.seconds - self.loaded_seconds) * self.answers_in_all / self.answers


class DemoForecast:
    """The seconds of each part: an estimate until it has ended, then what it took."""

    def __init__(
        self, *, nodes: int, cores: int, others: float, learning_seconds: float | None, prompts: int, first: int
    ) -> None:
        """``first``: how many models are measured before training. ``others``: how many processes compete with the
        nodes (``others_beside``). Without ``learning_seconds``, since tokens are the bound, only
        measurements are estimated."""
        at_once, first_at_once = (max(1.0, (each + OTHERS_WEIGHT * others) / cores) for each in (nodes, first))
        self._share = at_once / first_at_once  # of a later measurement to the first one
        self._learning_seconds = learning_seconds
        self.is_busy = at_once >= BUSY_FROM * max(1.0, nodes / cores)
        measuring = LOAD_CORE_SECONDS + prompts * ANSWERS_A_PROMPT * ANSWER_CORE_SECONDS
        self._around_learning = NODE_CORE_SECONDS * at_once
        self._estimated_load = LOAD_CORE_SECONDS * first_at_once
        self._seconds: dict[DemoPart, float | None] = {}
        self._set_measuring(measuring * first_at_once)
        self._set_learning(self._around_learning)

    @property
    def seconds(self) -> Mapping[DemoPart, float | None]:
        return self._seconds

    @property
    def whole_seconds(self) -> float | None:
        """All parts together; None where tokens are the bound."""
        return _sum(list(self._seconds.values()))

    def left_seconds(self, part: DemoPart) -> float | None:
        """``part`` and those after it."""
        parts = list(DemoPart)
        return _sum([self._seconds[each] for each in parts[parts.index(part) :]])

    def on_measuring(self, models: Sequence[Measuring]) -> bool:
        """Corrects the estimates by the first measurement under way; returns whether all its models showed how fast
        they are."""
        ends = [model.whole_seconds for model in models]
        whole = [end for end in ends if end is not None]
        if not whole or len(whole) < len(ends):
            return False
        self._set_measuring(max(whole))
        slower = max(model.loaded_seconds for model in models) / self._estimated_load
        self._set_learning(self._around_learning * slower)
        return True

    def on_end(self, part: DemoPart, seconds: float) -> None:
        """``part`` took ``seconds``, which corrects the later ones of its kind."""
        if part is DemoPart.BEFORE:
            self._set_measuring(seconds)
        elif part is DemoPart.TOGETHER and self._learning_seconds is not None:
            self._set_learning(max(0.0, seconds - self._learning_seconds))
        elif part is DemoPart.MEASURED_TOGETHER:
            self._seconds[DemoPart.MEASURED_ALONE] = seconds
        self._seconds[part] = seconds

    def _set_measuring(self, first_seconds: float) -> None:
        self._seconds[DemoPart.BEFORE] = first_seconds
        self._seconds[DemoPart.MEASURED_TOGETHER] = self._seconds[DemoPart.MEASURED_ALONE] = first_seconds * self._share

    def _set_learning(self, around_seconds: float) -> None:
        learning = self._learning_seconds
        self._seconds[DemoPart.TOGETHER] = None if learning is None else learning + around_seconds
        self._seconds[DemoPart.ALONE] = None if learning is None else ALONE_SHARE * learning + around_seconds


def measured_core_shares(processes: int) -> list[float]:
    """Runs so many processes at once for a second, each in a session of its own, as a node is. Returns what share of a
    core each of them got: 1 on a quiet machine that has as many cores."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _COMPUTE],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
            )
            for _ in range(processes)
        ]
        return [float(process.communicate()[0]) for process in started]


def others_beside(shares: Sequence[float], cores: int) -> float:
    """Returns how many other processes, each with a claim like ours, would leave these ``shares`` of ``cores`` to as
    many of ours. Where ours do not fill the cores, it counts what is left too, which slows none of them."""
    return max(0.0, cores * len(shares) / sum(shares) - len(shares))


def plan_lines(forecast: DemoForecast) -> list[str]:
    """Returns the plan that is shown at the start: the whole, then a line for each part."""
    whole = forecast.whole_seconds
    head = "The plan:" if whole is None else f"It takes {about(whole)} in all{MACHINE[forecast.is_busy]}:"
    width = max(len(_amount(each)) for each in forecast.seconds.values())
    return [head, *(f"  {_amount(forecast.seconds[part]):>{width}}  {part}" for part in DemoPart)]


def about(seconds: float) -> str:
    """Returns "about 40 s" or "about 4.5 minutes"."""
    if seconds < WHOLE_MINUTES_FROM:
        return f"about {max(5, 5 * round(seconds / 5)):g} s"
    return f"about {round(seconds / 30) / 2:g} minutes"


def _amount(seconds: float | None) -> str:
    return "until the tokens are generated" if seconds is None else about(seconds)


def _sum(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
