"""Decides whether and when a child process that ended is restarted, and describes its end. Pure functions."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from node.printable import printable
from node.supervision.outcome import RunOutcome
from swarm.exit_codes import FINAL, ExitCode

SHORT_LIFE_SECONDS = 60.0  # a longer life means that the previous cause of failure is gone
MAX_SHORT_LIVES = 5  # in a row; after these, another restart would not help
FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 30.0
LOG_FOLLOWS = "; the last lines of its log:"


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How one run of a child process ended."""

    returncode: int  # negative: the signal that ended it
    lived_seconds: float
    useful: bool  # it had done its work: the learner finished a round, the swarm process was ready
    last_lines: tuple[str, ...]  # of its log
    not_started: str = ""  # why the system could not start it just now; empty: it ran


@dataclass(frozen=True, slots=True)
class Restart:
    after_seconds: float


def decide(process: str, ends: Sequence[ChildEnd]) -> Restart | RunOutcome:
    """Decides what follows the unrequested ``ends`` of a child so far, oldest first: a restart, or the node's end. A
    child that the system could not start, for want of memory, processes or descriptors, is started again for as long
    as it takes."""
    last = ends[-1]
    if last.not_started:
        return Restart(_delay_seconds(sum(1 for _ in takewhile(lambda end: end.not_started, reversed(ends)))))
    if last.returncode in FINAL and not last.useful:
        return RunOutcome(ExitCode(last.returncode), describe(process, last))
    in_a_row = 0
    for end in reversed(ends):
        if end.useful or end.lived_seconds > SHORT_LIFE_SECONDS:
            break
        in_a_row += not end.not_started
    if in_a_row >= MAX_SHORT_LIVES:
        return RunOutcome(
            ExitCode.FAULT, f"{describe(process, last)}\nIt has ended early {in_a_row} times in a row: giving up."
        )
    return Restart(_delay_seconds(in_a_row))


def _delay_seconds(in_a_row: int) -> float:
    return min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(max(0, in_a_row - 1), 10))


def describe(process: str, end: ChildEnd) -> str:
    """Returns one line on how the child ended, and after a fault the last lines of its log."""
    if end.not_started:
        return f"{process} could not be started: {end.not_started}"
    headline = f"{process} {_cause(end.returncode)} after {end.lived_seconds:.0f} s"
    if end.returncode == 0 or not end.last_lines:
        return headline
    return "\n".join([f"{headline}{LOG_FOLLOWS}", *(f"    {printable(line)}" for line in end.last_lines)])


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
