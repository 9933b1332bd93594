"""Lines of a ``RollingLog``, read while the node writes them: the last ones, and new ones as they come.

Text of peers and libraries is shown escaped, one line for one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from node.printable import printable

LINE_CHARACTERS: Final = 4000
READ_BYTES: Final = 1 << 20  # at a time


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
