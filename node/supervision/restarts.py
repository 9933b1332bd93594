"""Whether a child process that ended is started again, when, and how its end is told in words. Pure functions."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from node.printable import printable
from swarm.exit_codes import FINAL, ExitCode

SHORT_LIFE_SECONDS = 60.0  # a child that lived longer was not ended by what ended the one before
SHORT_LIVES = 5  # in a row: something is wrong that another start does not mend
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class End:
    """How one life of a child process ended."""

    returncode: int  # negative: the signal that ended it
    lived_seconds: float
    useful: bool  # it did what it is for: the learner finished a round, the swarm process came up
    last_lines: tuple[str, ...]  # of its log


@dataclass(frozen=True, slots=True)
class Restart:
    after_seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    exit_code: ExitCode
    because: str


def decide(process: str, ends: Sequence[End]) -> Restart | GiveUp:
    """What follows from the ``ends`` of a child so far, oldest first, none of which was asked for."""
    last = ends[-1]
    if last.returncode in FINAL and not last.useful:
        return GiveUp(ExitCode(last.returncode), describe(process, last))
    in_a_row = 0
    for end in reversed(ends):
        if end.useful or end.lived_seconds > SHORT_LIFE_SECONDS:
            break
        in_a_row += 1
    if in_a_row >= SHORT_LIVES:
        return GiveUp(ExitCode.FAULT, f"{describe(process, last)}\nIt ended so {in_a_row} times in a row: giving up.")
    return Restart(min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** max(0, in_a_row - 1)))


def describe(process: str, end: End) -> str:
    """One line on how it ended, then the last lines of its log where it ended with a fault."""
    said = f"{process} {_cause(end.returncode)} after {end.lived_seconds:.0f} s"
    if end.returncode == 0 or not end.last_lines:
        return said
    return "\n".join([f"{said}; its last words:", *(f"    {printable(line)}" for line in end.last_lines)])


def _cause(returncode: int) -> str:
    if returncode == 0:
        return "ended by itself"
    if returncode == -signal.SIGKILL:
        return "was killed (signal 9), perhaps because the machine ran out of memory,"
    if returncode < 0:
        try:
            return f"was ended by {signal.Signals(-returncode).name} (signal {-returncode})"
        except ValueError:
            return f"was ended by signal {-returncode}"
    return f"failed with exit code {returncode}"
