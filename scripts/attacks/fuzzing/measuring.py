"""Gives inputs to a target, and notes what it raises, how long it takes, and what it allocates."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.errors import StarlingError

REPEATS = 3  # of a slow input: the fastest counts, so that a busy machine or a collection of garbage does not
REPEATED_SECONDS = 2e-4  # an input that takes longer, and longer than all before it, is repeated
LARGE_BYTES = 8 * 1024  # the memory of a longer input is measured more often
SHARE_TRACED = 512  # one input of so many has its memory measured
SHARE_LARGE_TRACED = 32
MAX_FAULTS = 20  # that are kept of one target

Act = Callable[[], object]
Prepare = Callable[[bytes], Act]
"""Returns what is measured; what it does before it returns is not."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An exception that its target does not declare, and where the input comes from."""

    target: str
    block: str
    raw: bytes
    error: str


@dataclass(slots=True)
class Record:
    """What one target did with its inputs."""

    inputs: int = 0
    refused: int = 0
    undeclared: int = 0
    cpu_seconds: float = 0.0
    slowest_seconds: float = 0.0
    slowest_block: str = ""
    largest_bytes: int = 0
    traced: int = 0
    faults: list[Fault] = field(default_factory=list)


class InputWatch:
    """Measures inputs of all targets."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}

    def give(self, target: str, prepare: Prepare, raw: bytes, block: str) -> None:
        """Gives one input. ``block`` names the inputs that are drawn from one seed."""
        record = self.records.setdefault(target, Record())
        record.inputs += 1
        act = prepare(raw)
        began = time.process_time()
        try:
            act()
        except StarlingError:
            record.refused += 1
        except Exception as error:  # noqa: BLE001  what this program looks for
            record.undeclared += 1
            if len(record.faults) < MAX_FAULTS:
                record.faults.append(Fault(target, block, raw, f"{type(error).__name__}: {error}"))
        seconds = time.process_time() - began
        record.cpu_seconds += seconds
        if seconds > max(REPEATED_SECONDS, record.slowest_seconds):
            seconds = min(seconds, *(_seconds(prepare(raw)) for _ in range(REPEATS)))
            if seconds > record.slowest_seconds:
                record.slowest_seconds, record.slowest_block = seconds, block
                _trace(record, prepare(raw))
        if record.inputs % (SHARE_TRACED if len(raw) < LARGE_BYTES else SHARE_LARGE_TRACED) == 1:
            _trace(record, prepare(raw))


def _seconds(act: Act) -> float:
    began = time.process_time()
    _quietly(act)
    return time.process_time() - began


def _trace(record: Record, act: Act) -> None:
    tracemalloc.start()
    _quietly(act)
    record.largest_bytes = max(record.largest_bytes, tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    record.traced += 1


def _quietly(act: Act) -> None:
    try:
        act()
    except Exception:  # noqa: BLE001  noted before
        return
