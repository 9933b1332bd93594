"""One exchange of weights that was accepted, and the messages of ``/starling/averaging/1`` on one stream."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import anyio

from protocol.errors import MalformedError
from protocol.limits import AVERAGING_MESSAGE_BYTES
from protocol.streams.averaging_messages import Abandon, AveragingMessage, Have, Offer, decode_averaging_message
from protocol.streams.framing import framed_message
from swarm.averaging import pairing_rules as rules
from swarm.averaging.pairing_rules import ExchangeEvent, ExchangePhase
from swarm.deadlines import deadline
from swarm.host import PeerId, Stream
from swarm.stream_reader import StreamReader, read_frame, send_within

M = TypeVar("M", bound=AveragingMessage)
N = TypeVar("N", bound=AveragingMessage)


class Conversation:
    """Messages on one stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._reader = StreamReader(stream, stall_seconds=math.inf)  # each message has a deadline of its own

    async def send(self, message: AveragingMessage, seconds: float) -> None:
        """Raises ``TransportError``; ``DeadlineError`` after so many seconds."""
        await send_within(self.stream, framed_message(message), seconds)

    async def receive(self, seconds: float, one: type[M], other: type[N]) -> M | N:
        """The next message, of one of two kinds. Raises ``TransportError`` and ``ProtocolError``."""
        with deadline(seconds, f"waiting for a whole message of {self.stream.peer}"):
            raw = await read_frame(self._reader.exactly, max_bytes=AVERAGING_MESSAGE_BYTES, what="averaging")
        message = decode_averaging_message(raw)
        if not isinstance(message, (one, other)):
            raise MalformedError(f"{type(message).__name__} where {one.__name__} or {other.__name__} is expected")
        return message


class WeightExchange:
    """One exchange that was accepted: its partner, its stream, and its progress."""

    def __init__(
        self, partner: PeerId, number: bytes, theirs: Offer, conversation: Conversation, *, proposed: bool
    ) -> None:
        self.partner = partner
        self.number = number
        self.key = (partner, number)
        self.theirs = theirs
        self.conversation = conversation
        self.proposed = proposed  # by us; the proposer ends the stream
        self.progress = rules.ExchangeProgress()
        self.because = ""  # "committed", or why not
        self.left_by_partner = False
        self.was_tried = False  # the partner proposed, and fetched our weights before we gave it any time
        self.began_seconds = anyio.current_time()
        self.given = anyio.Event()  # the last chunk of our weights was sent to the partner
        self.finished = anyio.Event()
        self._changed = anyio.Event()

    def note(self, event: ExchangeEvent, because: str = "") -> None:
        """Takes the progress on, and wakes ``until`` where that changes it."""
        before = self.progress
        self.progress = rules.after_event(before, event)
        if self.progress == before:
            return
        if self.progress.phase is ExchangePhase.COMMITTED:
            self.because = "committed"
        elif because:
            self.because = because
        self._changed.set()
        self._changed = anyio.Event()

    def on_last_message(self, message: Have | Abandon) -> None:
        """Notes the partner's last message. Raises ``MalformedError`` for one about another exchange."""
        if message.exchange != self.number:
            raise MalformedError(f"about exchange {message.exchange.hex()}; this stream is for {self.number.hex()}")
        if isinstance(message, Have):
            self.note(ExchangeEvent.HAVE_RECEIVED)
        else:
            self.left_by_partner = True
            self.note(ExchangeEvent.REFUSED, "abandoned by the partner")

    async def until(self, holds: Callable[[rules.ExchangeProgress], bool]) -> None:
        """Waits until ``holds`` is true of the progress."""
        while not holds(self.progress):
            await self._changed.wait()
