"""The handshake of a private cluster between two simulated hosts."""

from __future__ import annotations

import anyio

from protocol.cluster.refusal import RefusalReason
from protocol.errors import ProtocolError, RefusedError, UnreachableError
from swarm.host import Address, Handshake, PeerId

End = tuple[PeerId, Handshake | None]


async def perform_handshake(dialler: End, dialled: End, address: Address, *, delay_seconds: float) -> None:
    """Does what ``swarm.cluster.handshake.perform_handshake`` does on both sides, each frame after a delay.

    Raises ``RefusedError`` if the two do not hold the same key or one refuses the other, ``UnreachableError`` if a
    frame breaks the protocol.
    """
    (our_peer, ours), (their_peer, theirs) = dialler, dialled
    if ours is None or theirs is None or ours.keys()[0] not in list(theirs.keys()):
        raise RefusedError(f"{address}: the two do not hold the same pre-shared key", RefusalReason.WRONG_PSK)
    try:
        await anyio.sleep(delay_seconds)
        answer = theirs.answer(our_peer, ours.greet(their_peer))
        await anyio.sleep(delay_seconds)
        conclusion = ours.conclude(their_peer, answer.frame)
        await anyio.sleep(delay_seconds)
        if conclusion.frame:
            theirs.confirm(our_peer, conclusion.frame)
    except ProtocolError as error:
        raise UnreachableError(f"{address}: {error}") from error
    if conclusion.refused is not None:
        raise conclusion.refused
