"""``starling up --detach``: starts the node in a session of its own, shows what it says until it is ready, and leaves.

The node is the same command without ``--detach``. Its standard output is a pipe that this process reads until the node
is ready; afterwards nobody does, which a node does not mind, and its log in HOME/logs has everything.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from node.api.answers import paused_sentence
from node.api.node_client import ask_status
from node.api.types import NodeState, NodeStatus
from node.cli.page_link import page_link
from node.home import Home
from protocol.errors import TransportError

POLL_SECONDS: Final = 0.3
READ_BYTES: Final = 1 << 16
CRASH_LOG: Final = "crash"
CRASH_LOG_BYTES: Final = 1 << 20  # from which on the next start begins it anew


def start_detached(home: Home, command: Sequence[str], *, as_json: bool, write: Callable[[str], None]) -> int:
    """Starts ``command``, a ``starling up``, and returns once it is ready, or has ended: then with its exit code.

    Raises ``StorageError`` or ``ConfigurationError`` where the data directory cannot be used. After Ctrl-C the node
    goes on starting.
    """
    home.prepare()
    crashes = home.log(CRASH_LOG)
    crashes.parent.mkdir(mode=0o700, exist_ok=True)
    keep = crashes.exists() and crashes.stat().st_size < CRASH_LOG_BYTES
    with crashes.open("ab" if keep else "wb") as errors:
        node = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    began_bytes = crashes.stat().st_size
    try:
        status = _until_ready(home, node, write)
    except KeyboardInterrupt:
        write(f"The node goes on starting in the background (process {node.pid}); stop it with: {_verb(home, 'down')}")
        raise
    if status is None:
        with crashes.open("rb") as errors:
            errors.seek(began_bytes)
            sys.stderr.buffer.write(errors.read())
            sys.stderr.flush()
        return node.wait()
    if as_json:
        event = {"event": "detached", "pid": node.pid, "home": str(home.path), "page": status.page}
        write(json.dumps({**event, "state": status.state, "time_seconds": time.time()}))
    else:
        write("\n".join(ready_lines(home, status)))
    return 0


def ready_lines(home: Home, status: NodeStatus) -> list[str]:
    """Returns what the user reads last: that the node runs, and what to do with it."""
    page = page_link(status.page, home.api_token) if status.page and sys.stdout.isatty() else status.page
    background = f"in the background (process {status.pid})"
    resting = [] if status.paused is None else [paused_sentence(status.paused, time.time())]
    return [
        f"The node {'is up' if resting else 'trains'} {background}.",
        *resting,
        f"  what it does   {_verb(home, 'status')}   or   {_verb(home, 'top')}" + (f"   or   {page}" if page else ""),
        f"  its log        {_verb(home, 'logs -f')}",
        f"  rest           {_verb(home, 'pause --for 2h')}",
        f"  stop it        {_verb(home, 'down')}",
    ]


def _verb(home: Home, verb: str) -> str:
    """Returns a command that means this node, as short as it can be in the present environment."""
    from node.home import home_at

    is_default = home_at(None, os.environ).path == home.path
    return f"starling {verb}" if is_default else f"starling {verb} --home {home.path}"


def _until_ready(home: Home, node: subprocess.Popen[bytes], write: Callable[[str], None]) -> NodeStatus | None:
    """Passes the node's lines on; returns its status once it trains or rests, None if it has ended before."""
    assert node.stdout is not None
    os.set_blocking(node.stdout.fileno(), False)
    with selectors.DefaultSelector() as selector, node.stdout as output:
        selector.register(output, selectors.EVENT_READ)
        begun, asked_at = b"", 0.0
        while True:
            part = os.read(output.fileno(), READ_BYTES) if selector.select(POLL_SECONDS) else None
            if part:
                *whole, begun = (begun + part).split(b"\n")
                for line in whole:
                    write(line.decode("utf-8", "replace"))
            if part == b"":
                node.wait()
                return None
            if time.monotonic() - asked_at >= POLL_SECONDS:
                asked_at = time.monotonic()
                status = _status_of(home, node.pid)
                if status is not None and status.state in (NodeState.TRAINING, NodeState.PAUSED):
                    return status


def _status_of(home: Home, pid: int) -> NodeStatus | None:
    """Returns the status of the node that is this process, once it answers."""
    if not home.supervisor_socket.exists():
        return None
    try:
        status = ask_status(home)
    except TransportError:
        return None
    return status if status.pid == pid else None
