"""A log file of bounded size: the older half is kept beside it as NAME.1."""

from __future__ import annotations

import os
from pathlib import Path


class RollingLog:
    """Appends whole records; ``path`` and ``path.1`` hold at most ``max_bytes`` together.

    A full disk must not end the process that logs: ``append`` then drops the record, and ``failure`` holds the reason
    until a record is written again.
    """

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        self._path = path
        self._half_bytes = max_bytes // 2
        self.failure: str | None = None

    def append(self, record: bytes) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._path.exists() and self._path.stat().st_size + len(record) > self._half_bytes:
                self._path.replace(self._path.with_name(self._path.name + ".1"))
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(descriptor, record)
            finally:
                os.close(descriptor)
            self.failure = None
        except OSError as error:
            self.failure = f"{self._path} cannot be written: {error.strerror}"
