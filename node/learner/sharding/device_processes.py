"""The processes of the learner's other devices as the learner sees them: started, told what to do, watched, ended.

They run in the learner's session: ending the session ends them too. One that ends before the learner asked it
to leaves the others waiting in a collective, perhaps for minutes; so each has a thread that waits for its end, and
reports it at once.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final

from node.compute_environment import compute_environment
from node.learner.sharding.messages import RAN_OUT, DeviceStart, DeviceTask, line_of
from protocol.errors import AcceleratorError

COMMAND: Final = (sys.executable, "-P", "-m", "node.learner.sharding.device_process")
END_SECONDS: Final = 5.0
_NEXT: Final = "the learner is started again from its last checkpoint, on all devices; the learner's log has the reason"


class DeviceProcesses:
    def __init__(
        self,
        starts: Sequence[DeviceStart],
        on_loss: Callable[[str, bool], None],
        command: Sequence[str] = COMMAND,
    ) -> None:
        """``on_loss`` is called, on another thread, when one ends that was not asked to: with a sentence, and whether
        its memory ran out."""
        self._on_loss = on_loss
        self._ending = False
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, env=compute_environment(os.environ), bufsize=0)
            for _ in starts
        ]
        for process, start in zip(self._processes, starts, strict=True):
            self._write(process, line_of(start))
            threading.Thread(target=self._watch, args=(process, start.rank), name="device", daemon=True).start()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def tell(self, task: DeviceTask) -> None:
        """Tells all of them what to do next, after what they do now. Raises ``AcceleratorError`` if one has ended."""
        line = line_of(task)
        for process in self._processes:
            self._write(process, line)

    def end(self) -> None:
        """Ends all of them: they have nothing to save."""
        self._ending = True
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _write(self, process: subprocess.Popen[bytes], line: bytes) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(line)
        except BrokenPipeError as error:
            raise AcceleratorError(f"the process {process.pid} of another device has ended: {_NEXT}") from error

    def _watch(self, process: subprocess.Popen[bytes], rank: int) -> None:
        code = process.wait()
        if not self._ending:
            how = f"with signal {-code}" if code < 0 else f"with exit code {code}"
            how = "since its memory ran out" if code == RAN_OUT else how
            self._on_loss(f"the process of device {rank} ended {how}: {_NEXT}", code == RAN_OUT)
