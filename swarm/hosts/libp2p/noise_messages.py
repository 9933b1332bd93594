"""Messages of Noise on a connection, read and written with few system calls and few turns of the loop.

- A read takes what has arrived, up to ``READ_BYTES``, and later messages are taken from that. The library reads the two
  bytes of a length, and then the message: each is a read of its own, and wakes the loop at least once.
- The system is told how much of a message is missing, so that it wakes us for a large part of it and not for a packet.
- What does not fit one message is written as several, all at once.

No more than a message that is not whole is held of a peer while we wait for it, as in the library.
"""

from __future__ import annotations

from typing import cast

from libp2p.abc import IRawConnection
from libp2p.io.exceptions import IncompleteReadError
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH, SIZE_NOISE_MESSAGE_LEN, NoiseTransportReadWriter
from libp2p.security.secure_session import SecureSession

from swarm.hosts.libp2p.transport import READ_BYTES, MeteredSocket


class GatheredNoise(NoiseTransportReadWriter):
    """The two directions of one connection after the handshake of Noise. One task reads, one at a time writes."""

    def __init__(self, before: NoiseTransportReadWriter, socket: MeteredSocket | None) -> None:
        """Takes over from ``before``, which has read no message yet; ``socket`` lies below, None within a circuit."""
        super().__init__(cast(IRawConnection, before.read_writer.read_write_closer), before.noise_state)
        self._socket = socket
        self._received = bytearray()
        self._begin = 0  # of the next message in ``_received``

    async def read_msg(self, prefix_encoded: bool = False) -> bytes:
        """Returns the next message. Raises ``IncompleteReadError`` at the end, and what the library raises."""
        while (missing_bytes := self._missing_bytes()) > 0:
            await self._read_more(missing_bytes)
        begin = self._begin + SIZE_NOISE_MESSAGE_LEN
        self._begin = begin + self._length()
        message = self.decrypt(bytes(memoryview(self._received)[begin : self._begin]))
        if self._begin == len(self._received):
            self._received.clear()
            self._begin = 0
        return message

    def _length(self) -> int:
        return int.from_bytes(self._received[self._begin : self._begin + SIZE_NOISE_MESSAGE_LEN], "big")

    def _missing_bytes(self) -> int:
        """Of the next message; of its length, where that is not here yet."""
        here_bytes = len(self._received) - self._begin
        if here_bytes < SIZE_NOISE_MESSAGE_LEN:
            return SIZE_NOISE_MESSAGE_LEN - here_bytes
        return SIZE_NOISE_MESSAGE_LEN + self._length() - here_bytes

    async def _read_more(self, missing_bytes: int) -> None:
        del self._received[: self._begin]
        self._begin = 0
        if self._socket is not None:
            self._socket.wake_for(missing_bytes)
        received = await self.read_writer.read_write_closer.read(READ_BYTES)
        if not received:
            here_bytes = len(self._received)
            raise IncompleteReadError(
                f"the connection ended {missing_bytes} bytes before the end of a message",
                expected_bytes=here_bytes + missing_bytes,
                received_bytes=here_bytes,
            )
        self._received += received

    async def write_msg(self, msg: bytes, prefix_encoded: bool = False) -> None:
        """Writes ``msg``, in as many messages as it needs."""
        parts: list[bytes] = []
        for start in range(0, len(msg) or 1, MAX_PLAINTEXT_LENGTH):
            encrypted = self.encrypt(msg[start : start + MAX_PLAINTEXT_LENGTH])
            parts += len(encrypted).to_bytes(SIZE_NOISE_MESSAGE_LEN, "big"), encrypted
        await self.read_writer.read_write_closer.write(b"".join(parts))


def gather_noise(session: SecureSession, socket: MeteredSocket | None) -> None:
    """Lets a connection that has just finished its handshake read and write as above."""
    session.conn = GatheredNoise(cast(NoiseTransportReadWriter, session.conn), socket)
