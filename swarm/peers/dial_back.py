"""Dialling back, ``/starling/dialback/1``: asks a peer whether it can dial this node, and dials those who ask.

No node can be made to dial anybody else: it dials the IP address from which the asker is connected, and no other; of a
few ports those that the asker names; each on a connection of its own from another port, closed once the asker has
proved its peer id. A peer is served ``QUESTIONS`` times and then once each ``QUESTION_EVERY_SECONDS``, an IP address
``IP_QUESTIONS`` times and then once each ``IP_EVERY_SECONDS``, ``AT_ONCE`` peers at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import anyio

from protocol.errors import StarlingError
from protocol.limits import DIAL_BACK_BYTES, DIAL_BACK_PORTS
from protocol.streams.dial_back_messages import (
    DIAL_BACK_PROTOCOL,
    DialBackAnswer,
    DialBackQuestion,
    decode_dial_back_message,
)
from protocol.streams.framing import framed_message
from swarm.host import Address, Host, PeerId, Stream, tcp_address
from swarm.peers.reachability import DialReport
from swarm.stream_reader import StreamReader, asking, read_frame
from swarm.token_bucket import TokenBuckets

ANSWER_SECONDS: Final = 20.0
DIAL_SECONDS: Final = 5.0
QUESTIONS: Final = 4
QUESTION_EVERY_SECONDS: Final = 600.0
IP_QUESTIONS: Final = 32
IP_EVERY_SECONDS: Final = 60.0
AT_ONCE: Final = 16
REMEMBERED: Final = 1024  # peers, and IP addresses


class DialBack:
    """Asks, and serves those who ask."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._of_peers: TokenBuckets[PeerId] = TokenBuckets(1 / QUESTION_EVERY_SECONDS, QUESTIONS, REMEMBERED)
        self._of_ips: TokenBuckets[str] = TokenBuckets(1 / IP_EVERY_SECONDS, IP_QUESTIONS, REMEMBERED)
        self._running = 0
        if host.proves:
            host.handle(DIAL_BACK_PROTOCOL, self._on_stream)

    async def ask(self, peer: PeerId, ports: Sequence[int]) -> DialReport:
        """Asks a connected peer once, to dial the first ``DIAL_BACK_PORTS`` of ``ports``. Raises ``ProtocolError`` and
        ``TransportError``."""
        ports = tuple(dict.fromkeys(ports))[:DIAL_BACK_PORTS]
        async with asking(self._host, peer, DIAL_BACK_PROTOCOL, seconds=ANSWER_SECONDS) as stream:
            await stream.send(framed_message(DialBackQuestion(ports)))
            answer = decode_dial_back_message(await _receive(stream), DialBackAnswer)
        reached = [port for port in ports if port in answer.reached]
        was_tried = answer.dialled and bool(ports)
        return DialReport(
            peer, anyio.current_time(), answer.seen_ip, bool(reached) if was_tried else None, (*reached, 0)[0]
        )

    async def _on_stream(self, stream: Stream) -> None:
        question = decode_dial_back_message(await _receive(stream), DialBackQuestion)
        ip = self._host.remote_ip(stream.peer)
        if not ip or self._running >= AT_ONCE or not self._may_ask(stream.peer, ip):
            await stream.send(framed_message(DialBackAnswer(False, ip, ())))
            return
        self._running += 1
        try:
            reached = await self._dial(stream.peer, ip, question.ports)
        finally:
            self._running -= 1
        await stream.send(framed_message(DialBackAnswer(True, ip, tuple(sorted(reached)))))

    def _may_ask(self, peer: PeerId, ip: str) -> bool:
        now_seconds = anyio.current_time()
        return self._of_peers.take(peer, now_seconds=now_seconds) and self._of_ips.take(ip, now_seconds=now_seconds)

    async def _dial(self, peer: PeerId, ip: str, ports: tuple[int, ...]) -> set[int]:
        reached: set[int] = set()

        async def try_port(port: int) -> None:
            address = f"{tcp_address(ip, port)}/p2p/{peer}"
            try:
                await self._host.prove(address, deadline_seconds=DIAL_SECONDS)
                reached.add(port)
            except StarlingError:
                return  # that it cannot be dialled is the answer

        async with anyio.create_task_group() as dials:
            for port in set(ports):
                dials.start_soon(try_port, port)
        return reached


async def _receive(stream: Stream) -> bytes:
    reader = StreamReader(stream, stall_seconds=ANSWER_SECONDS)
    return await read_frame(reader.exactly, max_bytes=DIAL_BACK_BYTES, what="dialling back")


def ports_of(addresses: Iterable[Address]) -> tuple[int, ...]:
    """Returns the TCP ports of the addresses of a machine, ``DIAL_BACK_PORTS`` at most."""
    return tuple({int(a.split("/")[4]): None for a in addresses})[:DIAL_BACK_PORTS]
