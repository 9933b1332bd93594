"""Why an engine elsewhere is of no use any more, and what follows: a pure decision."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MOST_LOSSES: Final = 3  # in a row, without a generation that ended well between them
FIRST_DELAY_SECONDS: Final = 0.5


class EngineLoss(StrEnum):
    """``EngineLostError.reason``."""

    ENDED = "ended"  # the process, or its connection
    SILENT = "silent"  # it does not answer
    STALLED = "stalled"  # it answers, and samples nothing
    NOT_STARTED = "not_started"  # nothing answered in time at its start, or somebody else did
    UNLIKE = "unlike"  # it speaks another version of the protocol, or holds another model
    FALSE = "false"  # what it sent cannot be true


@dataclass(frozen=True, slots=True)
class StartAgain:
    after_seconds: float


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The embedded engine generates from now on."""


def after_loss(losses_in_a_row: int) -> StartAgain | TakeOver:
    """Returns what follows the last of so many losses in a row."""
    if losses_in_a_row >= MOST_LOSSES:
        return TakeOver()
    return StartAgain(FIRST_DELAY_SECONDS * 2 ** (losses_in_a_row - 1))
