"""The addresses that a node keeps over a restart, in ``peers.json``: those that it reached, the most useful first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from protocol.errors import StorageError
from swarm.atomic_file import write_atomically
from swarm.peers.discovery import AddressSource, Candidate

REMEMBERED = 256


class RememberedAddresses:
    """``path`` is that of ``peers.json``, or None to keep no addresses."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._saved: list[str] = []

    def load(self) -> list[str]:
        """Raises ``StorageError``."""
        if self._path is None or not self._path.exists():
            return []
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=list[str])[:REMEMBERED]
        except (OSError, msgspec.DecodeError) as error:
            raise StorageError(
                f"cannot read {self._path} ({error}): delete it, and the node looks for peers again"
            ) from error

    def save(self, candidates: Iterable[Candidate], is_useful: Callable[[str], bool]) -> None:
        """Writes the file if its content changed. Raises ``StorageError``.

        Kept first are addresses of useful peers, then those reached last, then those kept before: strangers that let
        themselves be reached push out nobody of use.
        """
        if self._path is None:
            return
        addresses = to_remember(candidates, is_useful)
        if addresses != self._saved:
            write_atomically(self._path, msgspec.json.encode(addresses))
            self._saved = addresses


def to_remember(candidates: Iterable[Candidate], is_useful: Callable[[str], bool]) -> list[str]:
    candidates = list(candidates)
    reached = [c for c in candidates if c.reached_at_seconds is not None]
    reached.sort(key=lambda c: (not is_useful(c.peer), -(c.reached_at_seconds or 0.0)))
    earlier = [c for c in candidates if c.reached_at_seconds is None and c.source is AddressSource.REMEMBERED]
    return [c.address for c in [*reached, *sorted(earlier, key=lambda c: c.failures)]][:REMEMBERED]
