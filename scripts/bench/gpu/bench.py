"""What a section is given: a device, a scale, and where its checks and figures go."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import torch

Scale = Literal["tiny", "quick", "full"]
Value = TypeVar("Value")

WARM_UP: Final = 2
MOST_REPEATS: Final = 20
MOST_SECONDS: Final = 2.0  # of repeating one measurement
MOST_KERNELS: Final = 8
KERNEL_NAME: Final = 70  # characters of a kernel's name that are kept


class SkippedError(Exception):
    """The section cannot run here; the message says why."""


@dataclass(frozen=True)
class Check:
    """One comparison with a reference; ``bound`` is the largest value that passes."""

    name: str
    value: float
    bound: float

    @property
    def passed(self) -> bool:
        return self.value <= self.bound  # never of NaN


@dataclass(frozen=True)
class Figure:
    """One measurement. ``bytes_moved`` and ``flops`` are the least that the work needs; the seconds that it took."""

    name: str
    value: float
    unit: str
    seconds: float | None = None
    bytes_moved: float | None = None
    flops: float | None = None


@dataclass
class Bench:
    """``tell`` receives each result as soon as it is there, so that a section that is stopped leaves what it had."""

    device: torch.device
    scale: Scale
    tell: Callable[[Check | Figure], None] = field(repr=False)

    def at_scale(self, *, tiny: Value, quick: Value, full: Value) -> Value:
        return {"tiny": tiny, "quick": quick, "full": full}[self.scale]

    def check(self, name: str, value: float, bound: float) -> None:
        """Records a check that passes where ``value`` ≤ ``bound``."""
        self.tell(Check(name, float(value), bound))

    def same(self, name: str, one: Any, other: Any) -> None:
        """Records a check that passes where both are equal."""
        self.tell(Check(f"{name}: equal", float(one != other), 0.0))

    def figure(self, name: str, value: float, unit: str) -> None:
        self.tell(Figure(name, float(value), unit))

    def time(
        self, name: str, work: Callable[[], object], *, bytes_moved: float | None = None, flops: float | None = None
    ) -> float:
        """Records and returns the median seconds of ``work``, after two runs that are not counted."""
        seconds = self.seconds_of(work)
        self.timed(name, seconds, bytes_moved=bytes_moved, flops=flops)
        return seconds

    def time_each(
        self,
        name: str,
        works: Sequence[Callable[[], object]],
        *,
        bytes_moved: float | None = None,
        flops: float | None = None,
    ) -> float:
        """Records and returns the median seconds of one of ``works``, which are alike and have operands of their own.

        All are started as one graph: the time is the device's alone, without that of starting each, and what one read
        is not in a cache for the next.
        """

        def one_after_another() -> None:
            for work in works:
                work()

        repeat: Callable[[], object] = one_after_another
        if self.device.type == "cuda" and self.scale != "tiny":
            one_after_another()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                one_after_another()
            repeat = graph.replay
        seconds = self.seconds_of(repeat) / len(works)
        self.timed(name, seconds, bytes_moved=bytes_moved, flops=flops)
        return seconds

    def timed(self, name: str, seconds: float, *, bytes_moved: float | None = None, flops: float | None = None) -> None:
        """Records seconds that were measured otherwise."""
        self.tell(Figure(name, 1e3 * seconds, "ms", seconds, bytes_moved, flops))

    def wall_seconds(self, work: Callable[[], object]) -> float:
        """Returns the seconds of one run, of the host and the device together."""
        self.synchronize()
        began = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - began

    def seconds_of(self, work: Callable[[], object]) -> float:
        if self.scale == "tiny":  # a time that means nothing
            return self._once(work)
        began = time.perf_counter()
        for _ in range(WARM_UP):
            work()
        self.synchronize()
        found: list[float] = []
        while len(found) < MOST_REPEATS and (not found or time.perf_counter() - began < MOST_SECONDS):
            found.append(self._once(work))
        return statistics.median(found)

    def _once(self, work: Callable[[], object]) -> float:
        if self.device.type != "cuda":
            began = time.perf_counter()
            work()
            return time.perf_counter() - began
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record()
        work()
        last.record()
        last.synchronize()
        return 1e-3 * float(first.elapsed_time(last))

    def busy_seconds(self, name: str, work: Callable[[], object]) -> float:
        """Returns the seconds of one run in which the device computed; the rest of its time it waited for the host.

        Records the kernels that took most of them.
        """
        on_card = self.device.type == "cuda"
        kinds = torch.profiler.ProfilerActivity
        with torch.profiler.profile(activities=[kinds.CUDA if on_card else kinds.CPU]) as seen:
            work()
            self.synchronize()
        spent = {
            e.key: 1e-6 * (e.self_device_time_total if on_card else e.self_cpu_time_total) for e in seen.key_averages()
        }
        for kernel in sorted(spent, key=lambda each: -spent[each])[:MOST_KERNELS]:
            self.figure(f"{name}: {kernel[:KERNEL_NAME]}", 1e3 * spent[kernel], "ms")
        return float(sum(spent.values()))

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def peak_bytes_of(self, work: Callable[[], object]) -> int:
        """Returns how far ``work`` raises the allocated memory at its highest; 0 where that is not known."""
        if self.device.type != "cuda":
            work()
            return 0
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


def largest_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Returns max |one − other| in float64; NaN if there is one."""
    return float((one.detach().double() - other.detach().double()).abs().max())
