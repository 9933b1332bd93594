"""One exchange of weights that was accepted, and the messages ``/starling/averaging/1`` over one stream."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import TypeVar

import anyio
import msgspec

from protocol import wire
from protocol.errors import DeadlineError, MalformedError, OversizedError
from swarm.averaging import pairing_rules as rules
from swarm.averaging.pairing_rules import Abandon, AveragingMessage, ExchangeEvent, ExchangePhase, Have, Offer
from swarm.blobs.blob_server import StreamReader
from swarm.host import PeerId, Stream

FRAME_BYTES = 1024
_LENGTH = struct.Struct(">I")

M = TypeVar("M", bound=AveragingMessage)
N = TypeVar("N", bound=AveragingMessage)


class Conversation:
    """Messages over one stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._reader = StreamReader(stream, stall_seconds=math.inf)  # each message has a deadline of its own

    async def send(self, message: AveragingMessage, seconds: float) -> None:
        """Raises ``TransportError``; ``DeadlineError`` after so many seconds."""
        body = msgspec.msgpack.encode(message)
        with anyio.move_on_after(seconds) as scope:
            await self.stream.send(_LENGTH.pack(len(body)) + body)
        if scope.cancelled_caught:
            raise DeadlineError(f"{self.stream.peer} read nothing for {seconds:g} s")

    async def receive(self, seconds: float, one: type[M], other: type[N]) -> M | N:
        """The next message, of one of two kinds. Raises ``TransportError`` and ``ProtocolError``."""
        with anyio.move_on_after(seconds) as scope:
            raw = await self._frame()
        if scope.cancelled_caught:
            raise DeadlineError(f"{self.stream.peer} said nothing whole for {seconds:g} s")
        message: AveragingMessage = wire.decode(raw, AveragingMessage, max_bytes=FRAME_BYTES)  # type: ignore[arg-type]  # a union
        if not isinstance(message, (one, other)):
            raise MalformedError(f"{type(message).__name__} where {one.__name__} or {other.__name__} is due")
        return message

    async def _frame(self) -> bytes:
        (length,) = _LENGTH.unpack(await self._reader.exactly(_LENGTH.size))
        if length > FRAME_BYTES:
            raise OversizedError(f"a message of {length} bytes on averaging; at most {FRAME_BYTES} are allowed")
        return bytes(await self._reader.exactly(length))

    async def drop(self) -> None:
        with anyio.CancelScope(shield=True):
            await self.stream.reset()


class WeightExchange:
    """One exchange that was accepted: its partner, its stream, and how far it has come."""

    def __init__(
        self, partner: PeerId, number: bytes, theirs: Offer, conversation: Conversation, *, proposed: bool
    ) -> None:
        self.partner = partner
        self.number = number
        self.key = (partner, number)
        self.theirs = theirs
        self.conversation = conversation
        self.proposed = proposed  # by us: then we end the stream
        self.progress = rules.ExchangeProgress()
        self.because = ""  # "committed", or why not
        self.left_by_partner = False
        self.began_seconds = anyio.current_time()
        self.finished = anyio.Event()
        self._changed = anyio.Event()

    def note(self, event: ExchangeEvent, because: str = "") -> None:
        before = self.progress
        self.progress = rules.advance(before, event)
        if self.progress == before:
            return
        if self.progress.phase is ExchangePhase.COMMITTED:
            self.because = "committed"
        elif because:
            self.because = because
        self._changed.set()
        self._changed = anyio.Event()

    def hear(self, message: Have | Abandon) -> None:
        """The partner's last word. Raises ``MalformedError`` for one on another exchange."""
        if message.exchange != self.number:
            raise MalformedError(f"about exchange {message.exchange.hex()}; this stream is for {self.number.hex()}")
        if isinstance(message, Have):
            self.note(ExchangeEvent.HEARD)
        else:
            self.left_by_partner = True
            self.note(ExchangeEvent.REFUSED, "abandoned by the partner")

    async def until(self, holds: Callable[[rules.ExchangeProgress], bool]) -> None:
        while not holds(self.progress):
            await self._changed.wait()
