"""The real learner, which rests after each round: while a test waits for something else, it costs no processor time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import BinaryIO

from node.events import Event, RoundDone
from node.learner import learner_process

REST_SECONDS = 0.4


def resting(reporter: Callable[[BinaryIO], Callable[[Event], None]]) -> Callable[[BinaryIO], Callable[[Event], None]]:
    def made(output: BinaryIO) -> Callable[[Event], None]:
        report = reporter(output)

        def rested(event: Event) -> None:
            report(event)
            if isinstance(event, RoundDone):  # from the thread that trains
                time.sleep(REST_SECONDS)

        return rested

    return made


if __name__ == "__main__":
    setattr(learner_process, "_reporter", resting(learner_process._reporter))  # noqa: B010  # for mypy it is a function
    code = learner_process.main()
    sys.stderr.flush()
    os._exit(code)  # as the learner's own module does
