"""A TCP port that stays a data directory's own: it is written down, and tried first at the next start.

So an address that a friend or a peer has kept leads to the node after a restart too, and a bookmark to its page. A node
moves to another port only while something else has it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from swarm.atomic_file import write_atomically

MAX_PORT: Final = 65535
_ANY_PORT: Final = re.compile(r"^/ip([46])/([^/]+)/tcp/0$")
_TCP_PORT: Final = re.compile(r"^/ip[46]/[^/]+/tcp/(\d+)/p2p/[^/]+$")  # of no address through a relay


def kept_port(file: Path) -> int | None:
    """Returns the port that ``file`` names; None where there is none or the file is damaged."""
    try:
        port = int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # none yet, or damaged: the next start writes it again
        return None
    return port if 0 < port <= MAX_PORT else None


def keep_port(file: Path, port: int) -> None:
    """Makes ``port`` the data directory's own. Raises ``StorageError`` where it cannot be written down."""
    if kept_port(file) != port:
        write_atomically(file, f"{port}\n".encode())


def listen_again(listen: str, file: Path) -> str:
    """Returns ``listen`` with the port of ``file`` where it asks for any port and nothing has that one."""
    asked, port = _ANY_PORT.match(listen), kept_port(file)
    if asked is None or port is None or not _is_free(asked[1], asked[2], port):
        return listen
    return f"/ip{asked[1]}/{asked[2]}/tcp/{port}"


def keep_listening_port(listen: str, file: Path, addresses: Iterable[str]) -> None:
    """Keeps the port at which a node listens, by its ``addresses``, where ``listen`` asked for any. Raises
    ``StorageError``."""
    ports = [int(found[1]) for found in map(_TCP_PORT.match, addresses) if found is not None]
    if ports and _ANY_PORT.match(listen):
        keep_port(file, ports[0])


def _is_free(version: str, ip: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if version == "6" else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port))
        except OSError:
            return False
    return True
