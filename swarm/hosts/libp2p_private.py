"""A private network for py-libp2p: who does not hold the pre-shared key is refused at the first bytes, on both sides.

    each direction = nonce (8 bytes) ‖ Salsa20(key, nonce) ⊕ what would be sent without a key

as the library has it (its cipher and nonce are not those of go-libp2p's private networks). The library reads on when
the key is wrong: decrypted noise is mostly a length that never fills, and both ends wait for their deadlines. Here the
first bytes are compared with the greeting that every libp2p connection begins with, and the connection ends with the
first one that differs. The key keeps strangers out; who a peer is it cannot show: Noise, which runs inside, does.
"""

from __future__ import annotations

from typing import Final

from Crypto.Cipher import Salsa20
from libp2p.abc import IRawConnection
from libp2p.io.exceptions import IOException
from libp2p.network.connection.exceptions import RawConnError
from libp2p.security.pnet.psk_conn import PskConn

PSK_BYTES: Final = 32
GREETING: Final = b"\x13/multistream/1.0.0\n"  # what both ends of a libp2p connection send first
_NONCE_BYTES: Final = 8


class PrivateNetworkError(RawConnError):
    """The other end does not hold our pre-shared key."""


class PrivateConnection(PskConn):
    """A connection under a pre-shared key (32 bytes) that ends where the other end shows not to hold it."""

    def __init__(self, connection: IRawConnection, psk: bytes) -> None:
        if len(psk) != PSK_BYTES:
            raise ValueError(f"a pre-shared key has {PSK_BYTES} bytes, not {len(psk)}")
        super().__init__(connection, psk.hex())
        self.is_initiator = connection.is_initiator
        self._proven = False
        self._unread = b""  # decrypted and not handed out yet

    async def read(self, n: int | None = None) -> bytes:
        """Raises ``PrivateNetworkError``, with the connection closed, unless the other end holds the key."""
        if not self._proven:
            await self._await_proof()
            self._proven = True
        if self._unread:
            taken = self._unread[:n]
            self._unread = self._unread[len(taken) :]
            return taken
        return await super().read(n)

    async def _await_proof(self) -> None:
        try:
            nonce = b""
            while len(nonce) < _NONCE_BYTES:
                nonce += await self._some(_NONCE_BYTES - len(nonce))
            self.read_cipher = Salsa20.new(key=self._psk, nonce=nonce)
            while len(self._unread) < len(GREETING):
                self._unread += self.read_cipher.decrypt(await self._some(len(GREETING) - len(self._unread)))
                if not GREETING.startswith(self._unread):
                    raise PrivateNetworkError("the other end does not hold this cluster's pre-shared key")
        except PrivateNetworkError:
            await self.close()
            raise

    async def _some(self, most_bytes: int) -> bytes:
        try:
            received = await self._conn.read(most_bytes)
        except IOException as error:
            raise PrivateNetworkError(f"the connection broke before the pre-shared key was shown ({error})") from None
        if not received:
            raise PrivateNetworkError("the other end closed the connection before it showed the pre-shared key")
        return received
