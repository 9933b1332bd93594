"""Reads RPCs from a stream: each its length, a varint, and its bytes."""

from __future__ import annotations

import anyio
from libp2p.abc import INetStream

from protocol import limits

READ_BYTES = 16 * 1024  # at a time, so that many small RPCs cost one read
LENGTH_BYTES = 4
RPC_SECONDS = 60.0  # for an RPC to arrive whole


class RpcReader:
    """Keeps at most the bytes of one RPC and ``READ_BYTES``. Raises what the stream raises, and ``EOFError``."""

    def __init__(self, stream: INetStream) -> None:
        self._stream = stream
        self._unread = bytearray()

    async def length(self) -> int:
        """Waits for an RPC and returns its length in bytes; one that is not allowed if it has too many digits."""
        length = 0
        for place in range(LENGTH_BYTES):
            if len(self._unread) <= place:
                await self._read(READ_BYTES)
            byte = self._unread[place]
            length |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                del self._unread[: place + 1]
                return length
        return limits.GOSSIP_RPC_BYTES + 1

    async def rpc(self, length: int) -> bytes:
        """Returns the next ``length`` bytes. Raises ``TimeoutError`` after ``RPC_SECONDS``."""
        if len(self._unread) < length:
            with anyio.fail_after(RPC_SECONDS):
                while len(self._unread) < length:
                    await self._read(max(READ_BYTES, length - len(self._unread)))
        raw = bytes(self._unread[:length])
        del self._unread[:length]
        return raw

    async def _read(self, max_bytes: int) -> None:
        piece = await self._stream.read(max_bytes)
        if not piece:
            raise EOFError
        self._unread += piece
