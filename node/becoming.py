"""A command's own process becomes another program: what the command imported is gone, and nothing waits beside it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import NoReturn

from node.home import Lock
from swarm.process_start import INPUT


def become(command: Sequence[str], line: bytes, lock: Lock, environment: Mapping[str, str]) -> NoReturn:
    """Replaces this process by ``command``, which reads ``line`` on its standard input and keeps the lock."""
    for descriptor in (lock.descriptor, lock.own_descriptor):  # one process: it is the supervisor that still lives
        os.set_inheritable(descriptor, True)
    with tempfile.TemporaryFile() as given:
        given.write(line + b"\n")
        given.seek(0)
        os.dup2(given.fileno(), INPUT)
    sys.stdout.flush()
    os.execve(sys.executable, list(command), dict(environment))
