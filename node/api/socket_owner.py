"""The user at the other end of a TCP connection within this machine, as Linux's sock_diag(7) tells it.

One request names one socket, so it takes microseconds however many there are.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

_SOCK_DIAG: Final = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY: Final = 20  # SOCK_DIAG_BY_FAMILY
_REQUEST: Final = 1  # NLM_F_REQUEST
_HEADER: Final = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_QUERY: Final = struct.Struct("=BBBBI")  # inet_diag_req_v2: family, protocol, extensions, padding, states
_SOCKET: Final = struct.Struct("!HH16s16s")  # inet_diag_sockid: ports and addresses, then interface and cookie
_ANY: Final = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_USER_AT: Final = _HEADER.size + 4 + _SOCKET.size + len(_ANY) + 12  # in the answer, an inet_diag_msg
_ANSWER_SECONDS: Final = 0.1  # the kernel answers at once

Address = tuple[str, int]  # IPv4


def user_of(theirs: Address, ours: Address) -> int | None:
    """Returns the id of the user that owns the socket ``theirs``, connected to ``ours``; None where nothing says it."""
    ports_and_hosts = _SOCKET.pack(theirs[1], ours[1], socket.inet_aton(theirs[0]), socket.inet_aton(ours[0]))
    query = _QUERY.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + ports_and_hosts + _ANY
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.settimeout(_ANSWER_SECONDS)
            kernel.send(_HEADER.pack(_HEADER.size + len(query), _BY_FAMILY, _REQUEST, 1, 0) + query)
            answer = kernel.recv(4096)
    except (OSError, AttributeError):  # no netlink here: macOS has none, a sandbox may forbid it
        return None
    kind = _HEADER.unpack_from(answer)[1]
    return int(struct.unpack_from("=I", answer, _USER_AT)[0]) if kind == _BY_FAMILY else None
