"""Processes of ``swarm.swarm_process`` that are forked from one which has imported it, for many that live shortly.

Each is a process of its own, with its own descriptors, signals and libp2p; only the imports, more than half of what the
start takes, are done once.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from multiprocessing.connection import Connection
from typing import IO, Final

from swarm.swarm_process import main

FORKING: Final = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload([__name__, "swarm.hosts.libp2p.libp2p_host"])


class ForkedProcess:
    """Has of ``subprocess.Popen`` what is needed, with pipes for standard input and output."""

    def __init__(self) -> None:
        its_input, write = FORKING.Pipe(duplex=False)
        read, its_output = FORKING.Pipe(duplex=False)
        self._process = FORKING.Process(target=_run, args=(its_input, its_output), daemon=True)
        self._process.start()
        its_input.close()
        its_output.close()
        self.stdin: IO[bytes] | None = os.fdopen(os.dup(write.fileno()), "wb")
        self.stdout: IO[bytes] = os.fdopen(os.dup(read.fileno()), "rb")
        write.close()
        read.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def wait(self, seconds: float | None = None) -> int:
        """Raises ``subprocess.TimeoutExpired``."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked swarm process", seconds or 0.0)
        return self._process.exitcode

    def communicate(self) -> None:
        if self.stdin is not None:
            self.stdin.close()
        self.stdout.read()
        self.stdout.close()
        self.wait()


def _run(its_input: Connection, its_output: Connection) -> None:
    for descriptor, pipe in ((0, its_input), (1, its_output)):
        os.dup2(pipe.fileno(), descriptor)
        pipe.close()
    main()
