"""The frames that arrive on a connection of Yamux, ahead of the library's reader.

Payload of a stream that is open here, and what a peer grants such a stream, is nearly all that arrives. It is acted on
here, with one copy and no turn of the loop of its own. The library takes a lock for either, which is a turn, and writes
six lines of a log that nobody reads. It gets every other frame, and the connection when it ends.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final

from libp2p.abc import ISecureConn
from libp2p.io.exceptions import IncompleteReadError
from libp2p.stream_muxer.yamux.yamux import HEADER_SIZE, TYPE_DATA, TYPE_WINDOW_UPDATE, YAMUX_HEADER_FORMAT

_HEADER: Final = struct.Struct(YAMUX_HEADER_FORMAT)
_NOTHING: Final = memoryview(b"")  # an empty part of a message would keep all of it in memory

OnGrant = Callable[[int, int], bool]  # (stream, bytes) -> whether it was acted on
OnPayload = Callable[[int, int], Awaitable[bool]]  # (stream, bytes), which it reads; or it reads none and returns False


class ArrivingFrames:
    """The secured connection as the library's reader has it: ``read`` gives headers of frames that are left to it.

    Their payload is read with ``exactly``.
    """

    def __init__(self, connection: ISecureConn, on_payload: OnPayload, on_grant: OnGrant) -> None:
        self._connection = connection
        self._on_payload, self._on_grant = on_payload, on_grant
        self._unread = _NOTHING  # of the last message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def read(self, n: int) -> bytes:
        """Returns the next header that is left to the library, all ``HEADER_SIZE`` bytes of it."""
        while True:
            # A copy: a view of the last message would keep all of it in memory while we wait for the next one.
            header = bytes(self.take(HEADER_SIZE) or await self.exactly(HEADER_SIZE))
            _, kind, flags, stream, length = _HEADER.unpack(header)
            if flags == 0 and (
                (kind == TYPE_DATA and length > 0 and await self._on_payload(stream, length))
                or (kind == TYPE_WINDOW_UPDATE and self._on_grant(stream, length))
            ):
                continue
            return header

    def take(self, size: int) -> memoryview | None:
        """Returns so many bytes if they are here, without waiting for any."""
        if len(self._unread) < size:
            return None
        taken = self._unread[:size]
        self._unread = self._unread[size:] or _NOTHING
        return taken

    async def exactly(self, size: int) -> bytes:
        """Waits for so many bytes. Raises ``IncompleteReadError`` if the connection ends before."""
        gathered = bytearray()
        while True:
            part = self._unread[: size - len(gathered)]
            gathered += part
            self._unread = self._unread[len(part) :] or _NOTHING
            if len(gathered) == size:
                return bytes(gathered)
            self._unread = memoryview(await self._connection.read(None))
            if not self._unread:
                raise IncompleteReadError("the connection ended within a frame", size, len(gathered))
