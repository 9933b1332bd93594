"""The process of one more device: ``python -m node.learner.sharding.device_process``. The learner starts and ends it.

It holds its rows of the model, and does its part of what the learner tells it (``messages``). It has no engine, no
tasks and no checkpoint. The end of its input means that the learner is gone, also by ``kill -9``, and ends it at once;
so does anything that it cannot do, which ends the learner in turn. Its output goes to the learner's log.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING

from node.library_imports import importing_libraries
from protocol.errors import ConfigurationError
from swarm.exit_codes import ExitCode
from swarm.process_start import INPUT

if TYPE_CHECKING:
    from node.learner.sharding.messages import DeviceStart

_READ_BYTES = 1 << 20


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the learner ends it by closing its standard input
        signal.signal(number, signal.SIG_IGN)
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(lines,), name="stdin", daemon=True).start()
    with importing_libraries():
        from node.learner.sharding.messages import DeviceStart, message_in
    start = message_in(lines.get(), DeviceStart)
    logging.basicConfig(
        level=start.log_level.upper(),
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname)s device {start.rank} %(name)s: %(message)s",
        force=True,
    )
    serve(start, iter(lines.get, b""))


def serve(start: DeviceStart, lines: Iterator[bytes]) -> None:
    """Does what ``lines`` say, one after another."""
    from node.learner.sharding.device import Device
    from node.learner.sharding.messages import DeviceTask, message_in

    device = Device(start)
    for line in lines:
        device.do(message_in(line, DeviceTask))  # type: ignore[arg-type]  # a union is no class


def _read(lines: SimpleQueue[bytes]) -> None:
    """Hands on the lines of standard input; at its end the process ends, whatever it does."""
    pending = b""
    while part := os.read(INPUT, _READ_BYTES):
        *whole, pending = (pending + part).split(b"\n")
        for line in whole:
            lines.put(line)
    os._exit(ExitCode.DONE)


if __name__ == "__main__":
    code: int = ExitCode.DONE
    try:
        main()
    except ConfigurationError as error:
        logging.getLogger(__name__).error("%s", error)
        code = ExitCode.BAD_CONFIGURATION
    except Exception as error:
        from node.learner.sharding.messages import RAN_OUT
        from node.policy.device_faults import is_out_of_memory

        logging.getLogger(__name__).exception("this device cannot go on")
        code = RAN_OUT if is_out_of_memory(error) else ExitCode.FAULT
    sys.stderr.flush()
    os._exit(code)  # a collective that waits for others must not delay the end
