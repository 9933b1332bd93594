"""Silent connections and readers of another user of the machine, on the API of a real node.

    sudo python -m scripts.attacks.api_connections [--json]

A node with the built-in model may open 1,024 descriptors. First 1,136 connections are opened that say nothing, and the
learner is killed: does the node still answer, write its metrics, and start the learner again? Then another user opens
40 readers of events, which needs root: does the owner still find a place?
"""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from scripts.bench.common.processes import free_port, started_node
from scripts.bench.common.reporting import Figure, figures_parser, report

DESCRIPTORS: Final = 1024
SILENT: Final = 1136
READERS: Final = 40
NOBODY: Final = 65534
PATIENCE_SECONDS: Final = 60.0
HOLD_READERS = """
import encodings.idna, os, socket, sys
os.setuid({user})
held = [socket.create_connection(("127.0.0.1", {port})) for _ in range({readers})]
for each in held:
    each.sendall(b"GET /api/v1/events HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n")
    each.recv(100)
print("held", flush=True)
sys.stdin.read()
"""


class Victim:
    def __init__(self, home: Path, port: int, pid: int) -> None:
        self.home, self.port, self._pid = home, port, pid

    def status(self) -> dict[str, Any] | None:
        """Returns the node's status as the web page would get it; None if there is no answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5.0)
        try:
            connection.request("GET", "/api/v1/status")
            answer = connection.getresponse()
            return dict(json.loads(answer.read())) if answer.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def finds_place_for_a_reader(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5.0) as reader:
            reader.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            try:
                return b" 200 " in reader.recv(100)
            except OSError:
                return False

    def descriptors(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self._pid}/fd").iterdir())

    def metrics_bytes(self) -> int:
        return (self.home / "metrics.jsonl").stat().st_size


def until(condition: Callable[[], bool], at_most_seconds: float = PATIENCE_SECONDS) -> bool:
    ends = time.monotonic() + at_most_seconds
    while not (met := condition()) and time.monotonic() < ends:
        time.sleep(0.2)
    return met


@contextmanager
def victim() -> Iterator[Victim]:
    port = free_port()
    with (
        tempfile.TemporaryDirectory(prefix="st-") as home,
        started_node(
            Path(home),
            "--set",
            f"api.port={port}",
            stdout=subprocess.DEVNULL,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS)),
        ) as node,
    ):
        found = Victim(Path(home), port, node.pid)
        try:
            if not until(lambda: (found.status() or {}).get("state") == "training", 120.0):
                raise RuntimeError("the node did not start")
            yield found
        finally:
            assert node.stdin is not None
            node.stdin.close()
            node.wait()


def silent_crowd(node: Victim, stack: ExitStack) -> dict[str, bool]:
    """Opens the silent connections, kills the learner, and returns what still works."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, max(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    before = node.status()
    assert before is not None
    learner = before["learner_process"]["pid"]
    for _ in range(SILENT):
        held = stack.enter_context(socket.socket())
        held.setblocking(False)
        held.connect_ex(("127.0.0.1", node.port))
    time.sleep(2.0)
    works = {"descriptors": node.descriptors() < DESCRIPTORS // 2, "answers": node.status() is not None}
    written = node.metrics_bytes()
    os.kill(learner, signal.SIGKILL)

    def learner_again() -> bool:
        now = node.status()
        return now is not None and now["learner_process"]["pid"] not in (None, learner)

    works["restarts its learner"] = until(learner_again)
    works["writes metrics"] = until(lambda: node.metrics_bytes() > written)
    return works


def readers_of_another_user(node: Victim) -> bool:
    code = HOLD_READERS.format(user=NOBODY, port=node.port, readers=READERS)
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as crowd:
        assert crowd.stdin is not None and crowd.stdout is not None
        crowd.stdout.readline()
        found = node.finds_place_for_a_reader()
        crowd.stdin.close()
    return found


def main() -> None:
    parser = figures_parser(__doc__)
    arguments = parser.parse_args()
    with victim() as node:
        with ExitStack() as stack:
            works = silent_crowd(node, stack)
        until(lambda: node.status() is not None)
        reader = readers_of_another_user(node) if os.getuid() == 0 else None
    figures = [
        Figure(f"beside {SILENT} silent connections: {what}", float(value), "", "higher", "1")
        for what, value in works.items()
    ]
    if reader is not None:
        figures.append(
            Figure(f"beside {READERS} readers of another user: the owner reads", float(reader), "", "higher", "1")
        )
    report("api_connections", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
