"""Performs the handshake of a private cluster, after two peers have proven their keys and before any other message.

A node that is refused never becomes a peer: it receives the reason, and the connection ends. Each side waits at most
``FRAME_SECONDS`` for each frame. ``protocol.streams.handshake_messages`` has the messages, and
``swarm.cluster.membership`` decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from protocol.limits import HANDSHAKE_MESSAGE_BYTES
from protocol.streams.framing import framed
from swarm.deadlines import deadline
from swarm.host import Handshake, PeerId
from swarm.stream_reader import read_frame

FRAME_SECONDS = 5.0  # for each frame of the other side

Send = Callable[[bytes], Awaitable[None]]
Receive = Callable[[int], Awaitable[bytes]]  # exactly that many bytes, or it raises


async def perform_handshake(handshake: Handshake, peer: PeerId, send: Send, receive: Receive, *, dialled: bool) -> None:
    """Returns once each side has admitted the other. Both call it, over a channel that has proven ``peer``.

    ``dialled`` is true on the side that dialled. Raises ``RefusedError`` if either side refuses, ``ProtocolError``,
    ``DeadlineError``, and what the channel raises.
    """
    if dialled:
        await send(framed(handshake.greet(peer)))
        said = handshake.conclude(peer, await _receive(peer, receive))
    else:
        said = handshake.answer(peer, await _receive(peer, receive))
    if said.frame:
        await send(framed(said.frame))
    if said.refused is not None:
        raise said.refused
    if not dialled:
        handshake.confirm(peer, await _receive(peer, receive))


async def _receive(peer: PeerId, receive: Receive) -> bytes:
    with deadline(FRAME_SECONDS, f"the handshake with {peer}"):
        return await read_frame(receive, max_bytes=HANDSHAKE_MESSAGE_BYTES, what="the handshake")
