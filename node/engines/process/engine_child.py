"""One run of the engine process as its parent sees it: started, connected to, ended."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from node.compute_environment import compute_environment
from node.engines.process.channel import SocketChannel
from node.engines.process.engine_setup import ProcessSetup
from node.engines.process.losses import EngineLoss
from protocol.errors import EngineLostError
from swarm.socket_peer import is_process

COMMAND: Final = (sys.executable, "-P", "-m", "node.engines.process.engine_process")
END_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.02  # between two attempts to connect, or to see it end


def connected(path: Path, pid: int, ended: Callable[[], str | None], seconds: float) -> SocketChannel:
    """Returns a connection to process ``pid`` at ``path``, where it listens before its model is loaded. ``ended``
    returns how the process ended, once it has.

    Raises ``EngineLostError`` where the process ends or stays silent, and where another one holds the socket.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        cause = ended()
        if cause is not None:
            raise EngineLostError(f"the engine process ended at its start: {cause}", EngineLoss.NOT_STARTED)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(path))
        except OSError:
            connection.close()
            time.sleep(_LOOK_SECONDS)
            continue
        if is_process(connection, pid):
            return SocketChannel(connection)
        connection.close()
        raise EngineLostError(
            f"the socket {path} is held by another process or user: end that one", EngineLoss.NOT_STARTED
        )
    raise EngineLostError(f"the engine process did not answer within {seconds:g} s", EngineLoss.NOT_STARTED)


class EngineChild:
    """A process that was started a moment ago. It ends when this process does, however that ends."""

    def __init__(
        self,
        setup: ProcessSetup,
        command: Sequence[str] = COMMAND,
        environment: Mapping[str, str] | None = None,
        told: Callable[[bytes], None] | None = None,
    ) -> None:
        """``environment``: by default that of a process that computes with torch. ``told`` gets each line of its
        standard output, on a thread of its own; without it they go where errors go. Raises ``EngineLostError`` where
        the system has no room for a process now."""
        self._path = Path(setup.socket)
        variables = compute_environment(os.environ) if environment is None else dict(environment)
        try:
            self._path.unlink(missing_ok=True)  # of one that was killed
            # No session of its own: whoever ends the learner's ends this too. Output goes to the learner's log.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=2 if told is None else subprocess.PIPE, env=variables, bufsize=0
            )
        except OSError as error:
            raise EngineLostError(
                f"the engine process could not be started ({error})", EngineLoss.NOT_STARTED
            ) from error
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        if told is not None:
            threading.Thread(target=self._read, args=(told,), daemon=True).start()
        with contextlib.suppress(BrokenPipeError):  # it has ended, which ``connect`` tells
            self._stdin.write(msgspec.json.encode(setup) + b"\n")

    def _read(self, told: Callable[[bytes], None]) -> None:
        assert self._process.stdout is not None
        with io.BufferedReader(self._process.stdout) as lines:  # type: ignore[type-var]  # it is raw: bufsize is 0
            for line in lines:
                told(line)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def connect(self, seconds: float) -> SocketChannel:
        """Returns a connection to the process. Raises as ``connected``."""
        return connected(self._path, self.pid, lambda: self.cause() if self.exit_code is not None else None, seconds)

    def cause(self) -> str:
        """Returns how the process has ended, in words."""
        code = self.exit_code or 0
        return f"signal {-code}" if code < 0 else f"exit code {code}; the learner's log has its last lines"

    def end(self, seconds: float = END_SECONDS) -> None:
        """Closes its input, which ends it, and kills it if it has not ended after ``seconds``."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        self._path.unlink(missing_ok=True)

    def kill(self) -> None:
        """Kills it, also where it is stopped."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        self._path.unlink(missing_ok=True)
