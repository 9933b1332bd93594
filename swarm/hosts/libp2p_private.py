"""A private network for py-libp2p: who does not hold the pre-shared key is refused at the first bytes, on both sides.

    each direction = nonce (8 bytes) ‖ Salsa20(key, nonce) ⊕ what would be sent without a key

as the library has it (its cipher and nonce are not those of go-libp2p's private networks). The library reads on when
the key is wrong: decrypted noise is mostly a length that never fills, and both ends wait for their deadlines. Here the
first bytes are compared with the greeting that every libp2p connection begins with, and the connection ends with the
first one that differs. Who was dialled sends nothing before that: it takes any of several keys (one that was changed
still lets members in who were away), and answers under the one that it was shown. A key keeps strangers out; who a peer
is it cannot show: Noise, which runs inside, does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import anyio
from Crypto.Cipher import Salsa20
from libp2p.abc import IRawConnection
from libp2p.io.exceptions import IOException
from libp2p.network.connection.exceptions import RawConnError
from libp2p.security.pnet.psk_conn import PskConn

PSK_BYTES: Final = 32
GREETING: Final = b"\x13/multistream/1.0.0\n"  # what both ends of a libp2p connection send first
PROOF_SECONDS: Final = 5.0  # for the other end to show it; a silent one must not hold a slot for long
_NONCE_BYTES: Final = 8


class PrivateNetworkError(RawConnError):
    """The other end does not hold our pre-shared key."""


class PrivateConnection(PskConn):
    """A connection under a pre-shared key (32 bytes) that ends where the other end shows not to hold it.

    Who dials uses the first of ``psks``; who was dialled accepts any of them.
    """

    def __init__(self, connection: IRawConnection, psks: Sequence[bytes]) -> None:
        for psk in psks:
            if len(psk) != PSK_BYTES:
                raise ValueError(f"a pre-shared key has {PSK_BYTES} bytes, not {len(psk)}")
        super().__init__(connection, psks[0].hex())
        self.is_initiator = connection.is_initiator
        self._psks = tuple(psks[:1]) if self.is_initiator else tuple(psks)
        self._proven = False
        self._unread = b""  # decrypted and not handed out yet
        self._unsent = b""  # until the other end has shown its key

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
        with anyio.move_on_after(PROOF_SECONDS):
            nonce = b""
            while len(nonce) < _NONCE_BYTES:
                nonce += await self._some(_NONCE_BYTES - len(nonce))
            possible = [(psk, Salsa20.new(key=psk, nonce=nonce)) for psk in self._psks]
            shown = 0
            while shown < len(GREETING):
                received = await self._some(len(GREETING) - shown)
                expected = GREETING[shown : shown + len(received)]
                possible = [(psk, cipher) for psk, cipher in possible if cipher.decrypt(received) == expected]
                if not possible:
                    raise PrivateNetworkError("the other end does not hold this cluster's pre-shared key")
                shown += len(received)
            (self._psk, self.read_cipher), self._unread = possible[0], GREETING
            return
        raise PrivateNetworkError(f"the other end showed no pre-shared key within {PROOF_SECONDS:g} s")

    async def _some(self, max_bytes: int) -> bytes:
        try:
            received = await self._conn.read(max_bytes)
        except IOException as error:
            raise PrivateNetworkError(f"the connection broke before the pre-shared key was shown ({error})") from None
        if not received:
            raise PrivateNetworkError("the other end closed the connection before it showed the pre-shared key")
        return received
