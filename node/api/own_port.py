"""The port of 127.0.0.1 on which the API is served: the one that was set, and no other, or else a free one.

A free one stays the data directory's own, so that a bookmark of its page stays true: it is written down, and tried
first at the next start. A node moves to another only while something else has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from node.configuration import ApiSection
from swarm.atomic_file import write_atomically

FREE_PORTS: Final = range(8470, 8480)  # so that several nodes of one machine have a page each
MAX_PORT: Final = 65535


def ports_to_try(section: ApiSection, remembered: Path) -> Sequence[int]:
    """Returns the ports to try, in order; empty for none. ``remembered`` is the file of ``remember``."""
    if section.port != "auto":
        return (section.port,) if section.port else ()
    own = _read(remembered)
    return FREE_PORTS if own is None else (own, *(port for port in FREE_PORTS if port != own))


def remember(file: Path, port: int) -> None:
    """Makes ``port`` the data directory's own. Raises ``StorageError`` where it cannot be written down."""
    if _read(file) != port:
        write_atomically(file, f"{port}\n".encode())


def _read(file: Path) -> int | None:
    try:
        port = int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # none yet, or damaged: the next start writes it again
        return None
    return port if 0 < port <= MAX_PORT else None
