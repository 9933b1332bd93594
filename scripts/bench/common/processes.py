"""Processes that benchmarks and attacks start: nodes, modules of this repository, and others that only compute."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from node.compute_environment import compute_environment
from scripts import REPOSITORY

STARLING: Final = (sys.executable, "-m", "node.cli.main")
LISTEN: Final = "/ip4/127.0.0.1/tcp/0"


def ensure_compute_environment() -> None:
    """Returns in a process that has ``compute_environment``, as a node's learner has, and where no model hub is asked.

    torch and transformers read the environment on import. So a process that lacks a variable of it is replaced by one
    that runs the same command. To be called first in ``main``.
    """
    environment = compute_environment({"HF_HUB_OFFLINE": "1", **os.environ})
    if environment != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def quiet_environment() -> dict[str, str]:
    """Returns the environment of a node that asks no hub and looks for nobody on the local network."""
    return os.environ | {"STARLING_SWARM__LAN_DISCOVERY": "false", "HF_HUB_OFFLINE": "1"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def started_node(home: Path, *flags: str, **how: Any) -> subprocess.Popen[bytes]:
    """Starts ``starling up`` on the loopback interface. It prints its events as JSON on ``stdout``, and ends when its
    standard input does. ``how`` goes to ``Popen``."""
    command = [*STARLING, "up", "--home", str(home), "--listen", LISTEN, "--json", "--until-input-ends", *flags]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **how}
    return subprocess.Popen(command, env=quiet_environment(), **pipes)


@contextmanager
def child(module: str, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a module of this repository, with pipes to its standard input and output; ends it on leaving. It sees the
    variables of ``environment`` beside this process's own."""
    command = [sys.executable, "-m", module, *arguments]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    pipes["env"] = {**os.environ, **environment}
    with subprocess.Popen(command, cwd=REPOSITORY, **pipes) as process:
        try:
            yield process
        finally:
            process.terminate()


def line_of(process: subprocess.Popen[str]) -> str:
    """Returns the next line that ``child`` prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], **fields: object) -> None:
    """Writes one line of JSON to the standard input of ``child``."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(fields) + "\n")
    process.stdin.flush()


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Runs ``count`` processes that always want a core, and ends them on leaving."""
    with ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(process.kill)
        yield
