"""The process of one tracker: ``python -m node.trackers.tracker_process``. ``sink`` starts it.

Standard input: one line, ``records.TrackedRun`` as JSON, then one ``records.Record`` a line, until the end of input.
Then the tracker is closed; if that takes over ``CLOSE_SECONDS``, or the tracker hangs, the process ends by force, so
that it never outlives the node for long. Whatever the tracker prints or raises goes to the log of its name.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from node.trackers.records import Record, TrackedRun
from node.trackers.writers import OPENERS, Writer
from swarm.exit_codes import ExitCode

CLOSE_SECONDS: Final = 10.0
QUEUED_RECORDS: Final = (
    1000  # while the tracker is busy; further ones wait in the pipe, and then in the node, which drops
)

_END: Final = b""


def main() -> int:
    """Returns the exit code."""
    first_line = sys.stdin.buffer.readline()
    if not first_line:
        return ExitCode.USAGE  # no node is there
    run = msgspec.json.decode(first_line, type=TrackedRun)
    lines: queue.Queue[bytes] = queue.Queue(QUEUED_RECORDS)
    threading.Thread(target=_read, args=(sys.stdin.buffer, lines.put), name="stdin", daemon=True).start()
    write_all(OPENERS[run.tracker](run), iter(lines.get, _END))
    return ExitCode.DONE


def write_all(writer: Writer, lines: Iterable[bytes]) -> None:
    """Writes every record and closes the tracker. Raises what the tracker raises."""
    decoder = msgspec.json.Decoder(Record)
    try:
        for line in lines:
            writer.write(decoder.decode(line))
    finally:
        writer.close()


def _read(lines: Iterable[bytes], put: Callable[[bytes], None]) -> None:
    for line in lines:
        put(line)
    threading.Timer(CLOSE_SECONDS, os._exit, [int(ExitCode.FAULT)]).start()
    put(_END)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a library's thread must not delay the end
