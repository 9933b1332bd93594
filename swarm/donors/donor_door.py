"""The owner's side of ``/starling/lend/1``: admits donors of the list, and connects each with the learner.

A donor's stream waits here until the learner takes it; from then on bytes pass between the stream and the learner's
connection to this process, unread. Guarantees: only a peer of the list, or the first one that shows the secret of an
open invitation, gets past its hello; while no invitation is open, nobody else holds even a place; one stream of each
donor is kept, the newest; a donor that sends anything before the learner took its stream, or is silent at its hello, is
cut off; what one side does not take stays with the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import ByteStream

from protocol import limits
from protocol.errors import MalformedError, TransportError, UnreachableError, VersionError
from protocol.streams.framing import framed_message
from protocol.streams.lend_messages import (
    LEND_PROTOCOL,
    LendHello,
    LendRefusal,
    LendRefused,
    LendTerms,
    check_lend_version,
    decode_lend_hello,
)
from swarm import api
from swarm.donors.donor_list import AdmittedDonor, Donors, admit, change_donors, drop, read_donors
from swarm.host import Host, PeerId, Stream
from swarm.stream_reader import StreamReader, read_frame

log = logging.getLogger(__name__)

HELLO_SECONDS: Final = 10.0
GREETING_AT_ONCE: Final = 16  # streams of peers that are not on the list, while an invitation is open
PART_BYTES: Final = 1 << 16

GONE: Final = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, TransportError)
_WORDS: Final = {
    LendRefusal.NOT_INVITED: "the owner has no open invitation with this secret: ask for another one",
    LendRefusal.EXPIRED: "the invitation was not used in time: ask the owner for another one",
    LendRefusal.DROPPED: "the owner does not take this donor any more",
    LendRefusal.NOT_READY: "the owner's learner does not run yet",
}
PAUSED: Final = "the owner's node is paused: it uses this machine again once it trains"


@dataclass(slots=True, eq=False)
class _Offer:
    """A donor's stream, past its hello."""

    stream: Stream
    name: str
    since_seconds: float
    taken: bool = False
    learner: ByteStream | None = None  # once bytes pass
    ended: anyio.Event = field(default_factory=anyio.Event)


class DonorDoor:
    """``path``: the list of donors."""

    def __init__(self, host: Host, path: Path, *, wall_clock: Callable[[], float]) -> None:
        self._path, self._wall_clock = path, wall_clock
        self._terms: LendTerms | None = None
        self._offers: dict[PeerId, _Offer] = {}
        self._greeting = 0
        self._paused = False
        host.handle(LEND_PROTOCOL, self._on_stream)

    def is_donor(self, peer: PeerId) -> bool:
        """Whether a donor is here; its connection is of use."""
        return peer in self._offers

    def offers(self, terms: LendTerms) -> api.DonorOffers:
        """Returns the donors that wait. Those that come from now on get ``terms``, and those that got
        others are cut off: they come again."""
        if self._terms is not None and terms != self._terms:
            for offer in self._offers.values():
                offer.ended.set()
        self._terms = terms
        return api.DonorOffers(
            tuple(
                api.DonorOffer(peer, offer.name, offer.since_seconds)
                for peer, offer in self._offers.items()
                if not offer.taken and not offer.ended.is_set()
            )
        )

    def take(self, peer: PeerId) -> api.Carrying:
        """Gives a donor's stream to one client, whose connection must be handed to ``carry``. Raises
        ``UnreachableError``."""
        offer = self._offers.get(peer)
        if offer is None or offer.taken or offer.ended.is_set():
            raise UnreachableError(f"donor {peer} is not waiting")
        offer.taken = True
        return api.Carrying(peer)

    async def carry(self, peer: PeerId, learner: ByteStream, first: bytes) -> None:
        """Sends ``first`` to the learner, then passes bytes both ways until either end is gone; then both are."""
        offer = self._offers.get(peer)
        if offer is None or not offer.taken or offer.learner is not None:
            return
        offer.learner = learner
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_when_set, offer.ended, tasks.cancel_scope.cancel)
                with suppress(*GONE):
                    await learner.send(first)
                    while True:
                        await offer.stream.send(await learner.receive(PART_BYTES))
                tasks.cancel_scope.cancel()
        finally:
            offer.ended.set()

    def set_paused(self, paused: bool) -> None:
        """While the owner's node is paused, donors are told so. Those that wait come again to hear it; those that the
        learner has taken are left to it until it ends."""
        self._paused = paused
        for offer in self._offers.values() if paused else ():
            if not offer.taken:
                offer.ended.set()

    def drop(self, peer: PeerId, because: str) -> None:
        """Refuses a donor for good. Raises ``StorageError``."""
        change_donors(self._path, lambda donors: drop(donors, peer, because))
        log.warning("donor %s is dropped: %s", peer, because)
        self.cut_off(peer)

    def cut_off(self, peer: PeerId) -> None:
        """Ends the stream of a donor, if it has one, and the learner's connection with it. The donor stays on the list
        and may come again."""
        if peer in self._offers:
            self._offers[peer].ended.set()

    async def _on_stream(self, stream: Stream) -> None:
        donors = read_donors(self._path)
        if any(each.peer == stream.peer for each in donors):  # its place is its own
            hello = await _hello(stream)
        elif any(each.is_open(self._wall_clock()) for each in donors) and self._greeting < GREETING_AT_ONCE:
            self._greeting += 1
            try:
                hello = await _hello(stream)
            finally:
                self._greeting -= 1
        else:
            await stream.send(framed_message(_refusal(LendRefusal.NOT_INVITED)))
            return
        refused, name = self._judged(stream.peer, hello)
        if refused is not None:
            await stream.send(framed_message(refused))
            return
        assert self._terms is not None
        await self._serve(stream, name, self._terms)

    def _judged(self, peer: PeerId, hello: LendHello) -> tuple[LendRefused | None, str]:
        """Returns why the donor is not taken, or the name of its entry."""
        try:
            check_lend_version(hello, layers=bool(self._terms and self._terms.layers))
        except VersionError as error:
            return LendRefused(LendRefusal.VERSION, str(error)), ""
        now_seconds, found = self._wall_clock(), admit(read_donors(self._path), peer, hello.secret, self._wall_clock())
        if isinstance(found, AdmittedDonor) and self._paused:  # before its invitation counts as used, like the next
            return LendRefused(LendRefusal.NOT_READY, PAUSED), ""
        if isinstance(found, AdmittedDonor) and self._terms is None:
            found = LendRefusal.NOT_READY
        if isinstance(found, LendRefusal):
            return _refusal(found), ""

        def admitted(donors: Donors) -> Donors:
            again = admit(donors, peer, hello.secret, now_seconds)
            return again.donors if isinstance(again, AdmittedDonor) else donors

        change_donors(self._path, admitted)
        return None, found.donor.name or hello.name

    async def _serve(self, stream: Stream, name: str, terms: LendTerms) -> None:
        """Holds the stream until either end is gone, or the learner's terms change."""
        peer = stream.peer
        earlier = self._offers.get(peer)
        if earlier is not None:
            earlier.ended.set()
        offer = self._offers[peer] = _Offer(stream, name, self._wall_clock())
        try:
            await stream.send(framed_message(terms))
            unasked = False
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_when_set, offer.ended, tasks.cancel_scope.cancel)
                unasked = await _sent_unasked(offer)
                tasks.cancel_scope.cancel()
        finally:
            offer.ended.set()
            if self._offers.get(peer) is offer:
                del self._offers[peer]
        if unasked:
            raise MalformedError("a donor sent something before it was asked")
        await stream.reset()


def _refusal(reason: LendRefusal) -> LendRefused:
    return LendRefused(reason, _WORDS[reason])


async def _hello(stream: Stream) -> LendHello:
    """Raises ``DeadlineError``, ``ProtocolError``."""
    reader = StreamReader(stream, stall_seconds=HELLO_SECONDS)
    hello = decode_lend_hello(await read_frame(reader.exactly, max_bytes=limits.LEND_MESSAGE_BYTES, what=LEND_PROTOCOL))
    if reader.unread:
        raise MalformedError("a donor said more than its hello before it was answered")
    return hello


async def _sent_unasked(offer: _Offer) -> bool:
    """Passes what the donor sends to the learner until its end. Returns whether it sent what nobody asked it for."""
    with suppress(*GONE):
        while part := await offer.stream.receive(PART_BYTES):
            if offer.learner is None:
                return True
            await offer.learner.send(part)
    return False


async def _when_set(event: anyio.Event, act: Callable[[], None]) -> None:
    await event.wait()
    act()
