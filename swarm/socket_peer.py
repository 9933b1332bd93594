"""Who is at the other end of a Unix socket, as the kernel tells it."""

from __future__ import annotations

import os
import socket
import struct

_CREDENTIALS = struct.Struct("3i")  # process, user, group


def is_process(connection: socket.socket, pid: int) -> bool:
    """Returns whether the other end is process ``pid`` and runs as this user. Linux alone tells it; elsewhere the mode
    of the socket's directory must keep others out, and this returns True."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    content = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    other_pid, other_user, _ = _CREDENTIALS.unpack(content)
    return bool(other_pid == pid and other_user == os.geteuid())
