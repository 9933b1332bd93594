"""The real learner, which rests after each round: while a test waits for something, it costs little processor time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import BinaryIO

from node.events import Event, RoundDone
from node.learner import learner_process

LEAST_SECONDS, MOST_SECONDS = 0.4, 2.0
REST_FOR_WORK = 3.0  # times the processor time since the rest before


def resting(
    reporter: Callable[[BinaryIO], Callable[[Event], None]], most_seconds: float = MOST_SECONDS
) -> Callable[[BinaryIO], Callable[[Event], None]]:
    def made(output: BinaryIO) -> Callable[[Event], None]:
        report = reporter(output)
        rested_at: float | None = None  # processor time; before the first round all of it is the start's

        def rested(event: Event) -> None:
            nonlocal rested_at
            report(event)
            if isinstance(event, RoundDone):  # from the thread that trains
                worked = 0.0 if rested_at is None else time.process_time() - rested_at
                time.sleep(min(max(REST_FOR_WORK * worked, LEAST_SECONDS), most_seconds))
                rested_at = time.process_time()

        return rested

    return made


if __name__ == "__main__":
    setattr(learner_process, "_reporter", resting(learner_process._reporter))  # noqa: B010  # for mypy it is a function
    code = learner_process.main()
    sys.stderr.flush()
    os._exit(code)  # as the learner's own module does
