"""The daemon's process: found, started with this node's key, and ended with the process that started it.

The daemon ends by itself once the last persistent control connection to it is closed. This host holds the only one, so
that the daemon ends with this process however that ends, ``kill -9`` included. It also ends if no such connection comes
within ``IDLE_SECONDS``. The key goes through a pipe and is never written to disk a second time.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import Process, SocketStream
from anyio.streams.text import TextReceiveStream

from protocol.errors import ConfigurationError, HostEndedError, TransportError
from protocol.identity import NodeKey
from swarm.deadlines import deadline
from swarm.hosts.go import daemon_messages as messages
from swarm.hosts.go.control import ControlSocket, close

START_SECONDS = 30.0
IDLE_SECONDS = 60.0  # longer than a start may take
NOTICE_SECONDS = 1.0  # in which all connections to a daemon that died have ended
END_SECONDS = 3.0  # for the daemon to close its connections after ours is closed
SOCKET_PATH_BYTES = 100  # the kernel's limit is 108, macOS's 104
WORDS_KEPT = 20  # lines of the daemon's log, for the error if it ends
CONNECTIONS_LOW, CONNECTIONS_HIGH = 256, 320  # the daemon drops connections above; the swarm's own rules keep below
PRIVATE_KEY_PREFIX = bytes.fromhex("08011240")  # libp2p's protobuf of an Ed25519 key: type 1, 64 bytes


def find_daemon() -> Path:
    """Returns the path of ``p2pd``. Raises ``ConfigurationError``, which says how to install it."""
    spec = importlib.util.find_spec("hivemind")
    places = spec.submodule_search_locations if spec is not None else None
    for place in places or ():
        path = Path(place) / "hivemind_cli" / "p2pd"
        if path.is_file():
            return path
    raise ConfigurationError(
        'swarm.host is "go", and the Go daemon p2pd is not installed here: install the extra "go" '
        '(Linux on x86-64: uv pip install "starling-swarm[go]"), or set swarm.host = "py"'
    )


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running daemon."""

    control: ControlSocket
    pid: int
    stream_socket: Path  # where this host listens for the streams that the daemon hands over
    process: Process
    last_words: deque[str]
    lifeline: SocketStream  # the persistent connection

    async def wait_until_ended(self) -> HostEndedError:
        """Returns, once the daemon has ended, the error that says so."""
        await self._lifeline_closed()
        return await self._end()

    async def end_behind(self, noticed: HostEndedError) -> HostEndedError:
        """Returns how the daemon ended where that is behind ``noticed``, on whichever connection; else ``noticed``."""
        ended = noticed
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(NOTICE_SECONDS) as waiting:
                await self._lifeline_closed()
            if not waiting.cancelled_caught:
                ended = await self._end()
        return ended

    async def _lifeline_closed(self) -> None:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                await self.lifeline.receive()

    async def _end(self) -> HostEndedError:
        with anyio.move_on_after(END_SECONDS):
            await self.process.wait()
        words = f"; its last words: {self.last_words[-1]}" if self.last_words else ""
        return HostEndedError(f"the daemon p2pd ended (status {self.process.returncode}){words}")


@asynccontextmanager
async def running_daemon(binary: Path, key: NodeKey, listen: Sequence[str], home: Path | None) -> AsyncIterator[Daemon]:
    """Starts the daemon, and ends it at the exit. Its sockets are in ``home``, if their paths are short enough there.

    Raises ``TransportError``, which names the addresses, if it cannot listen, ``ConfigurationError`` if it cannot be
    run.
    """
    _check_ports(listen)
    folder = _socket_folder(home)
    name = secrets.token_hex(4)  # a daemon of an earlier process may still be removing its own
    control_path, stream_path = folder / f"{name}.c", folder / f"{name}.s"
    try:
        process = await _start(binary, key, listen, control_path)
        try:
            words: deque[str] = deque(maxlen=WORDS_KEPT)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_keep_words, process, words)
                control = ControlSocket(control_path, process.pid)
                with deadline(START_SECONDS, "starting the daemon p2pd"):
                    lifeline = await _first_connection(control, control_path, process, words, listen)
                try:
                    yield Daemon(control, process.pid, stream_path, process, words, lifeline)
                finally:
                    await close(lifeline)
                    with anyio.CancelScope(shield=True), anyio.move_on_after(END_SECONDS):
                        await process.wait()
                    tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    process.kill()
                await process.wait()
                await process.aclose()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_ports(listen: Sequence[str]) -> None:
    """Raises ``TransportError`` for a port in use: the daemon would share it with another daemon of this user."""
    for address in listen:
        _, version, ip, _, port = address.split("/")[:5]
        with socket.socket(socket.AF_INET6 if version == "ip6" else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ip, int(port)))
            except OSError as error:
                raise _cannot_listen([address], error.strerror or str(error)) from error


def _cannot_listen(listen: Sequence[str], because: str) -> TransportError:
    return TransportError(
        f"cannot listen on {', '.join(listen)}: {because}. If another node runs here, stop it or listen on another "
        "port; port 0 takes a free one"
    )


def _socket_folder(home: Path | None) -> Path:
    """Makes a folder that this user alone can enter. One of an earlier process that was killed is removed."""
    if home is not None:
        folder = home / "p2pd"
        if len(os.fsencode(folder / "01234567.c")) <= SOCKET_PATH_BYTES:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
            return folder
    return Path(tempfile.mkdtemp(prefix="starling-p2pd-"))


async def _start(binary: Path, key: NodeKey, listen: Sequence[str], control_path: Path) -> Process:
    command = [
        str(binary),
        *("-listen", f"/unix{control_path}"),
        *("-id", "/dev/stdin"),
        *("-hostAddrs", ",".join([*listen, *map(_quic, listen)])),
        *("-idleTimeout", f"{IDLE_SECONDS:g}s"),
        *("-connManager", "-connLo", str(CONNECTIONS_LOW), "-connHi", str(CONNECTIONS_HIGH)),
        "-dhtServer",
        "-pubsub",
        "-autonat",  # answers others who ask whether they can be dialled, and punches holes
        "-autoRelay",  # asks peers for a place at their relay once it knows that it cannot be dialled
        "-relayService=false",  # whose limit is 4 GiB a circuit; the library's own relay has 128 KiB, two minutes
        "-q",
    ]
    try:
        process = await anyio.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # signals of the terminal are for us; it ends with us
            env={**os.environ, "GOLOG_LOG_LEVEL": "error", "GOLOG_LOG_FMT": "nocolor"},
        )
    except OSError as error:
        raise ConfigurationError(
            f'{binary} cannot be run here ({error.strerror}): set swarm.host = "py", or install the extra "go" anew'
        ) from error
    assert process.stdin is not None
    with suppress(anyio.BrokenResourceError):  # it has ended; its log says why
        await process.stdin.send(PRIVATE_KEY_PREFIX + key.private_bytes + key.public_bytes)
        await process.stdin.aclose()
    return process


def _quic(address: str) -> str:
    where, _, port = address.rpartition("/tcp/")
    return f"{where}/udp/{port}/quic-v1"


async def _keep_words(process: Process, words: deque[str]) -> None:
    assert process.stderr is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for text in TextReceiveStream(process.stderr, errors="replace"):
            words.extend(line[:1000] for line in text.splitlines() if line.strip())


async def _first_connection(
    control: ControlSocket, path: Path, process: Process, words: deque[str], listen: Sequence[str]
) -> SocketStream:
    while process.returncode is None:
        if path.exists():  # noqa: ASYNC240  one name, no waiting
            with suppress(HostEndedError):
                connection, _, _ = await control.open(messages.persistent_connection())
                return connection
        await anyio.sleep(0.01)
    await anyio.sleep(0.1)  # for its last line
    because = words[-1] if words else f"the daemon p2pd ended with status {process.returncode}"
    raise _cannot_listen(listen, because)
