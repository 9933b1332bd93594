"""Where a letter waits, ``/starling/letters/1``: at this member if peers can dial it, otherwise at one of its relays.

Newcomers dial the holder as they dial a member that admits them, so whoever can be dialled for the one serves for the
other. ``protocol.streams.letter_messages`` has the messages, ``letter_box`` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from protocol.errors import StarlingError, UnreachableError
from protocol.limits import LETTER_MESSAGE_BYTES
from protocol.streams.framing import framed_message
from protocol.streams.letter_messages import (
    LETTERS_PROTOCOL,
    AskAboutLetter,
    HoldLetter,
    LetterReceipt,
    decode_letter_message,
    decode_letter_question,
)
from swarm.cluster.letter_box import LETTERS, PER_MEMBER, LetterBox
from swarm.host import Host, PeerId, Stream
from swarm.recent import Recent
from swarm.stream_reader import StreamReader, asking, read_frame

ANSWER_SECONDS: Final = 5.0


class LetterExchange:
    """Leaves letters, asks about them, and holds those of other members. ``relays`` returns the relays at which to
    leave a letter; none: it is held here."""

    def __init__(
        self, host: Host, box: LetterBox, *, clock: Callable[[], float], relays: Callable[[], Sequence[PeerId]]
    ) -> None:
        self._host, self._box, self._clock, self._relays = host, box, clock, relays
        self._holders: Recent[bytes, PeerId] = Recent(LETTERS)  # of letters that were left from here
        host.handle(LETTERS_PROTOCOL, self._on_stream)

    async def leave(self, letter: HoldLetter) -> PeerId:
        """Returns the peer that holds the letter. Raises ``UnreachableError`` that says why none does."""
        failures = []
        for holder in self._relays() or [self._host.peer_id]:
            try:
                receipt = await self._ask(holder, letter)
            except StarlingError as error:
                failures.append(
                    f"{holder}: {error} (a relay of an earlier version takes no code; upgrade it, or print a whole "
                    "invite with starling invite)"
                )
                continue
            if receipt.state == "waiting":
                self._holders[letter.lookup] = holder
                return holder
            failures.append(
                f"{holder} holds as many codes as it may ({PER_MEMBER} of one member, {LETTERS} in all): wait until "
                "one is used or has expired"
            )
        raise UnreachableError(f"no code could be left: {'; '.join(failures)}")

    async def receipt(self, lookup: bytes) -> LetterReceipt:
        """Returns the state of a letter that was left from here. Raises ``ProtocolError``, ``TransportError``."""
        return await self._ask(self._holders.get(lookup, self._host.peer_id), AskAboutLetter(lookup))

    async def _ask(self, holder: PeerId, question: HoldLetter | AskAboutLetter) -> LetterReceipt:
        if holder == self._host.peer_id:
            return self._answer(holder, question)
        async with asking(self._host, holder, LETTERS_PROTOCOL, seconds=ANSWER_SECONDS) as stream:
            await stream.send(framed_message(question))
            return decode_letter_message(await _receive(stream), LetterReceipt)

    async def _on_stream(self, stream: Stream) -> None:
        question = decode_letter_question(await _receive(stream))
        await stream.send(framed_message(self._answer(stream.peer, question)))

    def _answer(self, peer: PeerId, question: HoldLetter | AskAboutLetter) -> LetterReceipt:
        if isinstance(question, HoldLetter):
            return self._box.hold(self._clock(), peer, question)
        return self._box.receipt(self._clock(), question.lookup, peer)


async def _receive(stream: Stream) -> bytes:
    reader = StreamReader(stream, stall_seconds=ANSWER_SECONDS)
    return await read_frame(reader.exactly, max_bytes=LETTER_MESSAGE_BYTES, what="letters")
