"""The learner process: ``python -m node.learner.learner_process``.

Standard input: one line, ``node.events.LearnerStart`` as JSON; then nothing until the line ``stop``. That line, the end
of input (the supervisor is gone) and SIGTERM mean the same: finish the round, checkpoint, exit 0. If the line or the
end comes while its libraries are imported, which takes seconds, it ends at once: there is nothing to save. A learner
that has not ended ``GRACE_SECONDS`` after the end of input is ended by force, so that no orphan outlives its
supervisor; one that was asked may take as long as the supervisor waits, since a large model's round takes minutes.
Standard output: events, one JSON line each. Standard error: the log. Exit codes: ``swarm.exit_codes``.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from node.configuration import Config
from node.events import STOP_LINE, Event, Fault, LearnerStart, Loading, encode_event
from protocol.errors import StarlingError
from swarm.exit_codes import ExitCode, exit_code_of

GRACE_SECONDS = 45.0  # below what a new supervisor waits for the children of a killed one


class StopRequest:
    """Whether and why the learner is to end. Set once, from any thread or a signal handler."""

    def __init__(self) -> None:
        self._because: str | None = None

    def set(self, because: str) -> None:
        if self._because is None:
            self._because = because

    def __call__(self) -> str | None:
        return self._because


def main() -> int:
    """Returns the exit code. Standard output carries events alone; whatever libraries print there goes to the log."""
    began = time.monotonic()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the supervisor's to answer
    stop = StopRequest()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set("asked"))
    report = _reporter(_claim_standard_output())
    lines = _input_lines()
    first_line = next(lines, None)
    if first_line is None:
        return ExitCode.USAGE  # nobody is there
    start = msgspec.json.decode(first_line, type=LearnerStart)
    config = Config.model_validate(start.config)
    _log_to_standard_error(config.log_level)
    imported = threading.Event()
    threading.Thread(target=_watch_input, args=(lines, stop, imported), name="stdin", daemon=True).start()
    try:
        _learn(Path(start.home), config, report, stop, began, imported)
    except StarlingError as error:
        logging.getLogger(__name__).error("%s", error)
        detail = str(error)
        report(Fault(time_seconds=time.time(), kind=error.reason, detail=detail, round=0, fatal=True))
        return exit_code_of(error)
    return ExitCode.DONE


def _learn(
    home: Path,
    config: Config,
    report: Callable[[Event], None],
    stop: StopRequest,
    began: float,
    imported: threading.Event,
) -> None:
    """Loads everything and runs until the end. The scorer's workers start first: they load beside us."""
    loading = Loading(time_seconds=time.time(), what="libraries", seconds=time.monotonic() - began)
    report(loading)
    from node.tasks.scorer import Scorer  # imports below are late so that the first event is not

    with Scorer(config.tasks) as scorer:
        from node.learner.assembly import assembled

        imported.set()
        with assembled(home, config, scorer, report, began, stop) as learner:
            report(learner.run(stop))


def _input_lines() -> Iterator[bytes]:
    """Lines of standard input without their ends. Not ``sys.stdin``: a thread that waits in it would hold its lock
    when the interpreter ends."""
    pending = b""
    while part := os.read(0, 1 << 16):
        *whole, pending = (pending + part).split(b"\n")
        yield from whole


def _watch_input(lines: Iterator[bytes], stop: StopRequest, imported: threading.Event) -> None:
    for line in lines:
        if line.strip() == STOP_LINE.encode():
            _stop_because("asked", stop, imported)
    _stop_because("supervisor gone", stop, imported)
    time.sleep(GRACE_SECONDS)
    logging.getLogger(__name__).error("not ended %g s after the end of input: ending by force", GRACE_SECONDS)
    os._exit(ExitCode.FAULT)


def _stop_because(reason: str, stop: StopRequest, imported: threading.Event) -> None:
    stop.set(reason)
    if not imported.is_set():
        os._exit(ExitCode.DONE)  # the scoring workers' input ends with us


def _claim_standard_output() -> BinaryIO:
    """The real standard output for events; file descriptor 1 goes to the log from here on, as libraries print there."""
    sys.stdout.flush()
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return events


def _reporter(output: BinaryIO) -> Callable[[Event], None]:
    """Writes each event as one line. Once nobody reads any more, events are dropped: the end of input tells why."""
    lock = threading.Lock()

    def report(event: Event) -> None:
        with lock:
            try:
                output.write(encode_event(event) + b"\n")
                output.flush()
            except BrokenPipeError:
                logging.getLogger(__name__).debug("nobody reads events any more")

    return report


def _log_to_standard_error(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a thread that still waits for the swarm process must not hold the end up
