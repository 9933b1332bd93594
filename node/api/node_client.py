"""A client of a running node's Unix socket. It imports only the standard library and msgspec, so it starts quickly."""

from __future__ import annotations

import http.client
import socket
import time
from typing import TypeVar

import msgspec

from node.api.types import (
    GainsAnswer,
    HistoryAnswer,
    NodeStatus,
    PauseAnswer,
    PeersAnswer,
    RolloutsAnswer,
    SamplesAnswer,
    SettingsAnswer,
    StopAnswer,
    SwarmAnswer,
)
from node.home import Home, holder_of
from protocol.errors import DeadlineError, TransportError, UnreachableError

A = TypeVar("A", bound=msgspec.Struct)
TIMEOUT_SECONDS = 10.0
STATUS_SECONDS = 4.0  # a supervisor that runs answers this one at once


def ask_status(home: Home) -> NodeStatus:
    """Raises ``UnreachableError`` with the remedy where no node runs in ``home``, as all functions here do;
    ``DeadlineError`` where one runs and does not answer; ``TransportError`` for an answer that this version does not
    understand."""
    return _ask(home, "GET", "/api/v1/status", NodeStatus, STATUS_SECONDS)


def ask_peers(home: Home) -> PeersAnswer:
    return _ask(home, "GET", "/api/v1/peers", PeersAnswer)


def ask_gains(home: Home) -> GainsAnswer:
    return _ask(home, "GET", "/api/v1/gains", GainsAnswer)


def ask_settings(home: Home) -> SettingsAnswer:
    return _ask(home, "GET", "/api/v1/settings", SettingsAnswer)


def ask_swarm(home: Home) -> SwarmAnswer:
    return _ask(home, "GET", "/api/v1/swarm", SwarmAnswer)


def ask_rollouts(home: Home) -> RolloutsAnswer:
    return _ask(home, "GET", "/api/v1/rollouts", RolloutsAnswer)


def ask_history(home: Home, points: int) -> HistoryAnswer:
    return _ask(home, "GET", f"/api/v1/history?points={points}", HistoryAnswer)


def ask_samples(home: Home) -> SamplesAnswer:
    return _ask(home, "GET", "/api/v1/samples", SamplesAnswer)


def ask_stop(home: Home) -> StopAnswer:
    return _ask(home, "POST", "/api/v1/stop", StopAnswer)


def ask_pause(home: Home, for_seconds: float | None, *, at_once: bool = False) -> PauseAnswer:
    query = ([] if for_seconds is None else [f"seconds={for_seconds}"]) + (["at_once=true"] if at_once else [])
    return _ask(home, "POST", f"/api/v1/pause?{'&'.join(query)}", PauseAnswer)


def ask_resume(home: Home, for_seconds: float | None) -> PauseAnswer:
    return _ask(
        home, "POST", "/api/v1/resume" + ("" if for_seconds is None else f"?seconds={for_seconds}"), PauseAnswer
    )


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_seconds: float) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path, self._timeout_seconds = path, timeout_seconds

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._timeout_seconds)
        self.sock.connect(self._path)


def _ask(home: Home, method: str, target: str, expected: type[A], timeout_seconds: float = TIMEOUT_SECONDS) -> A:
    connection = _Connection(str(home.supervisor_socket), timeout_seconds)
    try:
        connection.request(method, target)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise _no_answer(home, error) from None
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise TransportError(f"the node in {home.path} answered {response.status} to {target}: restart it")
    try:
        return msgspec.json.decode(body, type=expected)
    except msgspec.DecodeError as error:
        raise TransportError(
            f"the node in {home.path} runs another version ({error}): restart it with this version of starling up"
        ) from None


def _no_answer(home: Home, error: Exception) -> TransportError:
    """Tells a node that is not there from one that does not answer, by the lock of its data directory."""
    holder = holder_of(home)
    if holder is None:
        why = "" if isinstance(error, FileNotFoundError | ConnectionRefusedError) else f" ({error})"
        return UnreachableError(
            f"no node is running in {home.path}{why}: start one with starling up, "
            "or name its data directory with --home or STARLING_HOME"
        )
    if holder.supervisor is None:
        return DeadlineError(
            f"the node in {home.path} has ended, and its processes are still checkpointing: wait until they have ended"
        )
    if home.swarm_socket.exists() and not home.supervisor_socket.exists():  # a node opens that one first
        return DeadlineError(
            f"a relay runs in {home.path} (process {holder.supervisor}), and no node: starling status shows it, "
            "starling down ends it, and everything else takes a node, which starling up starts in another directory"
        )
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.since_seconds))
    why = "its socket is not open" if isinstance(error, FileNotFoundError | ConnectionRefusedError) else str(error)
    return DeadlineError(
        f"a node is running in {home.path} (process {holder.supervisor}, since {since}) but does not answer ({why}): "
        f"it may be starting, ending or stopped by a signal; see starling logs, and kill {holder.supervisor} where "
        "it stays so"
    )
