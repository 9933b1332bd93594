"""``starling logs``: what the node has said, whether anybody was looking or not.

Lines of a ``RollingLog`` are read while the node writes them. Text of peers and libraries is shown escaped.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from node.cli.options import HomeOption, home_of
from node.printable import printable
from protocol.errors import StorageError

POLL_SECONDS = 0.3
LINE_CHARACTERS: Final = 4000
READ_BYTES: Final = 1 << 20  # at a time


class Process(StrEnum):
    NODE = "node"
    LEARNER = "learner"
    SWARM = "swarm"


FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Show new lines as they come, until Ctrl-C.")]
LinesOption = Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines to show.")]
ProcessOption = Annotated[
    Process,
    typer.Option("--of", help="node: what starling up shows. learner, swarm: the full logs of its two processes."),
]


def logs(
    home: HomeOption = None, follow: FollowOption = False, lines: LinesOption = 50, of: ProcessOption = Process.NODE
) -> None:
    """Show the node's log, from its data directory. The node may be running or not.

    A log is bounded: its older half is kept beside it and dropped when the newer one is full.

    Examples:

    starling logs -f

    starling logs -n 200 --of learner
    """
    where = home_of(home)
    path = where.log(of)
    if not follow and not path.exists():
        raise StorageError(
            f"there is no {path}: no node has run in {where.path} yet; start one with starling up, or name its data "
            "directory with --home or STARLING_HOME"
        )
    with closing(LogFollower(path)) as follower:  # before the last lines are read, so that none is missed
        for line in last_lines(path, lines, end=follower.position):
            typer.echo(line)
        while follow:
            for line in follower.new_lines():
                typer.echo(line)
            time.sleep(POLL_SECONDS)


def last_lines(path: Path, count: int, *, end: int | None = None) -> list[str]:
    """Returns the last ``count`` lines of the log and of its older half; of ``path`` only those before ``end``."""
    kept: deque[bytes] = deque(maxlen=count)
    for part, limit in ((path.with_name(f"{path.name}.1"), None), (path, end)):
        try:
            with part.open("rb") as file:
                kept.extend((file.read() if limit is None else file.read(limit)).splitlines())
        except OSError:  # it is not there yet
            continue
    return [shown(line) for line in kept]


def shown(line: bytes) -> str:
    return printable(line.decode("utf-8", "replace").replace("\t", "    ").rstrip(), LINE_CHARACTERS)


class LogFollower:
    """Reads what is appended to ``path``, also after the log has been rolled or before it is there. To be closed."""

    def __init__(self, path: Path) -> None:
        """New lines are those after what is there now."""
        self._path = path
        self._file: BinaryIO | None = None
        self._begun = b""
        self._open()
        self.position = self._file.seek(0, os.SEEK_END) if self._file is not None else 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def new_lines(self) -> Iterator[str]:
        """Yields the lines that are complete since the last call."""
        if self._file is None:
            self._open()
        if self._file is None:
            return
        rolled = self._is_rolled()  # asked before the last read of the old file, so that nothing of it is missed
        yield from self._read()
        if rolled:
            self._file.close()
            self._open()
            yield from self._read()

    def _open(self) -> None:
        try:
            self._file = self._path.open("rb")
        except OSError:
            self._file = None

    def _is_rolled(self) -> bool:
        assert self._file is not None
        try:
            return not os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except OSError:  # between its two names
            return False

    def _read(self) -> Iterator[str]:
        while self._file is not None and (part := self._file.read(READ_BYTES)):
            *whole, self._begun = (self._begun + part).split(b"\n")
            yield from map(shown, whole)
