"""The learner process: ``python -m node.learner.learner_process``. ``node/supervision/start.py`` names this command.

``run_learner`` takes a ready ``Learner`` from ``assembly.py`` and runs it; its rounds are in ``loop.py``, the next file
to read.

Standard input: one line, ``node.events.LearnerStart`` as JSON, then nothing until the line ``stop`` or ``pause``. That
line, the end of input (the supervisor is gone) and SIGTERM mean the same: finish the round, checkpoint, exit 0. If a
line or the end comes while the libraries are imported, which takes seconds, the process ends at once: there is nothing
to save. When the supervisor is gone, a learner that has not ended after ``MAX_ORPHAN_SECONDS`` ends by force, so that
no orphan outlives its supervisor. A learner that was asked to stop may take as long as the supervisor waits, since a
large model's round takes minutes. Standard output: events, one JSON line each. Standard error: the log. Exit codes:
``swarm.exit_codes``.
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
from node.events import PAUSE_LINE, STOP_LINE, Event, Fault, LearnerStart, Loading, encode_event
from node.learner.memory.abandoned import WaitAbandoned
from node.library_imports import importing_libraries
from node.policy.device_faults import accelerator_error, detail_of, is_out_of_memory
from node.process_pipes import claim_standard_output
from node.stages.attendance import NEW_PLAN, Attendance
from protocol.errors import StarlingError
from swarm.exit_codes import ExitCode, exit_code_of

MAX_ORPHAN_SECONDS = 45.0  # after the end of input; below what a new supervisor waits for the children of a killed one

_NO_ROOM = (
    "memory ran out where nothing can be halved, in loading or between two phases of a round ({}): set "
    'policy.dtype = "bfloat16", policy.adapter_rank = 16 or policy.four_bit = true, or choose another policy.model; '
    "`starling fit MODEL` prints what each takes and what would fit"
)


class StopRequest:
    """Whether the learner is to end, and why. Set once, from any thread or a signal handler."""

    def __init__(self) -> None:
        self._because: str | None = None

    def set(self, because: str) -> None:
        if self._because is None:
            self._because = because

    def __call__(self) -> str | None:
        return self._because


def main() -> int:
    """Runs the learner with the settings in the first line of standard input, and returns its exit code.

    The code is ``ExitCode.USAGE`` where standard input ends before that line, otherwise that of ``run_learner``.
    SIGTERM asks the learner to stop; SIGINT is ignored. Only events go to standard output: what libraries print there
    goes to the log.
    """
    began = time.monotonic()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor handles a terminal's Ctrl-C
    stop = StopRequest()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set("asked"))
    report = _reporter(claim_standard_output())
    lines = _input_lines()
    first_line = next(lines, None)
    if first_line is None:
        return ExitCode.USAGE  # no supervisor is there
    start = msgspec.json.decode(first_line, type=LearnerStart)
    config = Config.model_validate(start.config)
    _log_to_standard_error(config.log_level)
    imported = threading.Event()
    threading.Thread(target=_watch_input, args=(lines, stop, imported), name="stdin", daemon=True).start()
    return run_learner(Path(start.home), config, report, stop, began=began, on_imported=imported.set)


def run_learner(
    home: Path,
    config: Config,
    report: Callable[[Event], None],
    should_stop: Callable[[], str | None],
    *,
    began: float,
    on_imported: Callable[[], None] = lambda: None,
) -> ExitCode:
    """Loads everything and runs rounds until the end; where the machines of a model change (``Attendance``), it does so
    again from what it has learnt. Returns the exit code; a ``StarlingError`` is a fatal ``Fault``,
    and so is a GPU that failed: the supervisor starts a new process, which may find the GPU well.

    ``began`` is ``time.monotonic()`` when the process started; ``on_imported`` is called once all libraries are loaded.
    """
    try:
        report(Loading(time_seconds=time.time(), what="libraries", seconds=time.monotonic() - began))
        from node.tasks.scorer import Scorer  # these imports are late so that the first event is not

        with Scorer(config.tasks) as scorer:  # its workers start first: they load while this process does
            with importing_libraries():
                from node.learner.assembly.loading import assembled
                from node.learner.memory.errors import give_back

            on_imported()
            attendance = Attendance()
            while True:
                with assembled(home, config, scorer, report, began, should_stop, attendance) as learner:
                    round_before, tokens_before = learner.state.round, learner.state.tokens_generated
                    stopped = learner.run(lambda: should_stop() or attendance.new_plan)
                if stopped.because != NEW_PLAN or stopped.lost is not None:
                    break
                config = _with_left(
                    config, stopped.round - round_before, stopped.tokens_generated_total - tokens_before
                )
                del learner
                give_back()
                began = time.monotonic()
            report(stopped)
    except StarlingError as error:
        return _ended_by(error, report)
    except WaitAbandoned:  # asked to stop before it had what it waits for
        return ExitCode.DONE
    except Exception as error:
        failure = accelerator_error(error)
        if failure is not None:
            return _ended_by(failure, report)
        if not is_out_of_memory(error):
            raise
        logging.getLogger(__name__).error("memory ran out", exc_info=error)
        report(
            Fault(
                time_seconds=time.time(), kind="memory", detail=_NO_ROOM.format(detail_of(error)), round=0, fatal=True
            )
        )
        return ExitCode.FAULT
    return ExitCode.DONE if stopped.lost is None else ExitCode.NOT_SAVED


def _with_left(config: Config, rounds: int, tokens: int) -> Config:
    """Returns the configuration with what is left to do after so many rounds and tokens: at least one. What was learnt
    stays, also where the run began from the weights of peers."""
    return config.model_copy(
        update={
            "rounds": max(1, config.rounds - rounds) if config.rounds else 0,
            "tokens": max(1, config.tokens - tokens) if config.tokens else 0,
            "checkpoint": config.checkpoint.model_copy(update={"from_peers": False}),
        }
    )


def _ended_by(error: StarlingError, report: Callable[[Event], None]) -> ExitCode:
    logging.getLogger(__name__).error("%s", error)
    report(Fault(time_seconds=time.time(), kind=error.reason, detail=str(error), round=0, fatal=True))
    return exit_code_of(error)


def _input_lines() -> Iterator[bytes]:
    """Yields the lines of standard input without their ends. It does not use ``sys.stdin``, because a thread that waits
    in it would hold its lock when the interpreter ends."""
    pending = b""
    while part := os.read(0, 1 << 16):
        *whole, pending = (pending + part).split(b"\n")
        yield from whole


def _watch_input(lines: Iterator[bytes], stop: StopRequest, imported: threading.Event) -> None:
    for line in lines:
        if line.strip() == STOP_LINE.encode():
            _stop_because("asked", stop, imported)
        elif line.strip() == PAUSE_LINE.encode():
            _stop_because("paused", stop, imported)
    _stop_because("supervisor gone", stop, imported)
    time.sleep(MAX_ORPHAN_SECONDS)
    log = logging.getLogger(__name__)
    log.error("the learner has not ended %g s after the end of its input: it ends by force now", MAX_ORPHAN_SECONDS)
    os._exit(ExitCode.FAULT)


def _stop_because(reason: str, stop: StopRequest, imported: threading.Event) -> None:
    stop.set(reason)
    if not imported.is_set():
        os._exit(ExitCode.DONE)  # the scoring workers' input ends with this process


def _reporter(output: BinaryIO) -> Callable[[Event], None]:
    """Returns a function that writes each event as one line. Events after the supervisor is gone are dropped; the
    end of input says why."""
    lock = threading.Lock()

    def report(event: Event) -> None:
        with lock:
            try:
                output.write(encode_event(event) + b"\n")
                output.flush()
            except BrokenPipeError:
                logging.getLogger(__name__).debug("an event is dropped: standard output is closed")

    return report


def _log_to_standard_error(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a thread that still waits for the swarm process must not delay the end
