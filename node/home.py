"""The data directory of one node: its paths, and the lock that lets only one node use it at a time."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import ConfigurationError, StorageError
from swarm.donors import DONOR_LIST

MAX_SOCKET_PATH_BYTES = 103  # a Unix socket's address holds 104 with the final zero byte on macOS, 108 on Linux


class _Inside:
    """A path inside the data directory."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, home: Home, _: type[Home]) -> Path:
        return home.path / self._name


@dataclass(frozen=True, slots=True)
class Home:
    """Paths inside the data directory."""

    path: Path

    key = _Inside("identity.key")
    lock = _Inside("lock")
    supervisor_lock = _Inside("supervisor.lock")
    supervisor_socket = _Inside("supervisor.sock")
    swarm_socket = _Inside("swarm.sock")
    engine_socket = _Inside("engine.sock")
    engine_code = _Inside("engine-code")  # links to our packages, for an engine that another Python environment runs
    engine_files = _Inside("engine")  # whole weights for an engine in a process of its own, while that loads them
    devices_meeting = _Inside("devices.meeting")  # where the processes of a learner on several devices find each other
    api_token = _Inside("api.token")
    api_port = _Inside("api.port")  # the directory's own, where none was set
    metrics = _Inside("metrics.jsonl")
    checkpoints = _Inside("checkpoints")
    fitted = _Inside("fitted.json")
    audits = _Inside("audits.json")  # of environments
    donors = _Inside(DONOR_LIST)  # on an owner's machine
    lend = _Inside("lend.json")  # the invitation of its owner, on a donor's machine
    pause = _Inside("pause.json")
    peers = _Inside("peers.json")  # addresses, written by the swarm process
    swarm_lists = _Inside("swarm-lists")  # those that were read here, by signer

    def log(self, process: str) -> Path:
        return self.path / "logs" / f"{process}.log"

    def prepare(self) -> None:
        """Makes the directory, accessible to its owner alone. Raises ``StorageError`` or ``ConfigurationError``."""
        too_long = socket_path_fault(self)
        if too_long is not None:
            raise ConfigurationError(f"{too_long}; choose a shorter one with --home or STARLING_HOME")
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"the data directory {self.path} cannot be made ({error.strerror}): choose another with --home"
            ) from None


def how_to_write(path: Path) -> str:
    """Returns what a person does about a directory that cannot be written."""
    try:
        read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        read_only = False
    first = "its file system is mounted read-only: mount it for writing" if read_only else "make it yours (chown)"
    return f"{first}, or choose another directory with --home"


def socket_path_fault(home: Home) -> str | None:
    """Returns why no Unix socket fits into the data directory; None if one does."""
    longest_bytes = len(os.fsencode(home.supervisor_socket))
    if longest_bytes <= MAX_SOCKET_PATH_BYTES:
        return None
    return (
        f"the path of the data directory is too long for a Unix socket in it ({longest_bytes} bytes, at most "
        f"{MAX_SOCKET_PATH_BYTES}): {home.path}"
    )


def home_at(chosen: Path | None, environment: Mapping[str, str]) -> Home:
    """Returns ``--home``, otherwise STARLING_HOME, otherwise the user's data directory, as an absolute path."""
    if chosen is None and environment.get("STARLING_HOME"):
        chosen = Path(environment["STARLING_HOME"])
    if chosen is None:
        data = environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
        chosen = Path(data) / "starling"
    return Home(chosen.expanduser().absolute())


@dataclass(frozen=True, slots=True)
class Lock:
    """Held by every process that has ``descriptor`` open: the supervisor, and the children that inherit it."""

    descriptor: int
    own_descriptor: int  # of a second lock, which no child inherits: it shows whether the supervisor itself still lives

    def release(self) -> None:
        """Gives up this process's share; children that inherited it keep theirs."""
        os.close(self.own_descriptor)
        os.close(self.descriptor)


@dataclass(frozen=True, slots=True)
class LockHeld:
    """Another node uses the data directory."""

    supervisor: int | None  # its process id; None where it is dead and its children, which end soon, hold the lock

    @property
    def holder(self) -> str:
        return f"process {self.supervisor}" if self.supervisor else "processes that are still ending"


def lock_home(home: Home) -> Lock | LockHeld:
    """Locks the data directory for this process, unless another node has locked it. Raises ``StorageError`` where the
    files of the lock cannot be made."""
    try:
        descriptor, own_descriptor = _open(home.lock), _open(home.supervisor_lock)
        supervisor_gone = _try_lock(own_descriptor)
        if not _try_lock(descriptor):
            holder = os.pread(own_descriptor, 32, 0).strip()
            os.close(descriptor)
            os.close(own_descriptor)
            return LockHeld(None if supervisor_gone or not holder.isdigit() else int(holder))
        os.ftruncate(own_descriptor, 0)
        os.pwrite(own_descriptor, b"%d\n" % os.getpid(), 0)
    except OSError as error:
        raise StorageError(
            f"{home.lock} cannot be opened ({error.strerror}): free some space there; {how_to_write(home.path)}"
        ) from None
    return Lock(descriptor, own_descriptor)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who uses a data directory now."""

    supervisor: int | None  # its process id; None where only processes that it left behind are still ending
    since_seconds: float  # Unix time at which it took the lock


def holder_of(home: Home) -> Holder | None:
    """Returns who holds the lock of the data directory; None where no process of a node does."""
    if not is_locked(home):
        return None
    try:
        text, since_seconds = home.supervisor_lock.read_text().strip(), home.supervisor_lock.stat().st_mtime
    except (OSError, UnicodeDecodeError):
        return Holder(None, time.time())
    return Holder(int(text) if text.isdigit() and is_running(int(text)) else None, since_seconds)


def is_running(pid: int) -> bool:
    """Returns whether a process has this id, of whichever user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def is_locked(home: Home) -> bool:
    """Returns whether any process of a node uses the data directory now."""
    try:
        descriptor = os.open(home.lock, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
