"""A private network for py-libp2p: a peer without the pre-shared key is refused at the first bytes, on both sides.

    each direction = nonce (8 bytes) ‖ Salsa20(key, nonce) ⊕ what would be sent without a key

as in the library (whose cipher and nonce are not those of go-libp2p's private networks). With a wrong key the library
continues to read: decrypted noise is mostly a length that never fills, and both ends wait for their deadlines. Here the
first bytes are compared with the greeting that every libp2p connection begins with, and the connection ends at the
first byte that differs. The side that was dialled sends nothing before that. It accepts any of several keys (a former
key still admits members that were away when it changed), and answers under the key that it was shown. The key keeps
strangers out; Noise, which runs inside, proves which peer it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import anyio
from libp2p.abc import IRawConnection
from libp2p.io.exceptions import IOException
from libp2p.network.connection.exceptions import RawConnError
from libp2p.security.pnet.psk_conn import PskConn

PSK_BYTES: Final = 32
GREETING: Final = b"\x13/multistream/1.0.0\n"  # what both ends of a libp2p connection send first
PROOF_SECONDS: Final = 5.0  # for the other end to send it; a silent one must not hold a slot for long
_NONCE_BYTES: Final = 8


class PrivateNetworkError(RawConnError):
    """The other end does not hold our pre-shared key."""


class PrivateConnection(PskConn):
    """A connection under a pre-shared key (32 bytes), which ends as soon as the other end turns out not to hold it.

    The dialling side uses the first of ``psks``; the other side accepts any of them.
    """

    def __init__(self, connection: IRawConnection, psks: Sequence[bytes]) -> None:
        for psk in psks:
            if len(psk) != PSK_BYTES:
                raise ValueError(f"a pre-shared key has {PSK_BYTES} bytes, not {len(psk)}")
        super().__init__(connection, psks[0].hex())
        self.is_initiator = connection.is_initiator
        self._psks = tuple(psks[:1]) if self.is_initiator else tuple(psks)
        self._proven = False
        self._unread = b""  # decrypted and not read yet
        self._unsent = b""  # held back until the other end has shown its key

    async def write(self, data: bytes) -> None:
        if self._proven or self.is_initiator:
            await super().write(data)
        else:
            self._unsent += data

    async def read(self, n: int | None = None) -> bytes:
        """Raises ``PrivateNetworkError``, with the connection closed, unless the other end holds the key."""
        if not self._proven:
            try:
                await self._await_proof()
            except PrivateNetworkError:
                await self.close()
                raise
            self._proven = True
            if self._unsent:
                await super().write(self._unsent)
        if self._unread:
            taken = self._unread[:n]
            self._unread = self._unread[len(taken) :]
            return taken
        return await super().read(n)

    async def _await_proof(self) -> None:
        from Crypto.Cipher import Salsa20  # 2 MB, in private clusters alone

        with anyio.move_on_after(PROOF_SECONDS):
            nonce = b""
            while len(nonce) < _NONCE_BYTES:
                nonce += await self._read_some(_NONCE_BYTES - len(nonce))
            possible = [(psk, Salsa20.new(key=psk, nonce=nonce)) for psk in self._psks]
            shown = 0
            while shown < len(GREETING):
                received = await self._read_some(len(GREETING) - shown)
                expected = GREETING[shown : shown + len(received)]
                possible = [(psk, cipher) for psk, cipher in possible if cipher.decrypt(received) == expected]
                if not possible:
                    raise PrivateNetworkError("the other end does not hold this cluster's pre-shared key")
                shown += len(received)
            (self._psk, self.read_cipher), self._unread = possible[0], GREETING
            return
        raise PrivateNetworkError(f"the other end showed no pre-shared key within {PROOF_SECONDS:g} s")

    async def _read_some(self, max_bytes: int) -> bytes:
        try:
            received = await self._conn.read(max_bytes)
        except IOException as error:
            raise PrivateNetworkError(f"the connection broke before the pre-shared key was shown ({error})") from None
        if not received:
            raise PrivateNetworkError("the other end closed the connection before it showed the pre-shared key")
        return received
