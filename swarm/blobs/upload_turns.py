"""Which peers are served when more of them want blobs than the server can serve at once.

An answer is sent in parts, and each part needs a turn. Turns go to the peer with the best reputation, and among equals
to the one that was served least of late: first by network, then by peer. So a peer that asks for less than an equal
share gets all of it at once, whatever the others ask for, and neither an identity nor an address gets more than its
share while others wait. A peer that takes no bytes for ``SLOW_SECONDS`` does not hold a turn.

Streams are bounded, ``STREAMS_PER_PEER`` for each peer; when all are open, the one that waits longest without a request
makes room. Requests under way are bounded too. One that finds them full pushes out, in this order: one of a peer with a
lower reputation; of the same reputation, one whose peer took no bytes for ``SLOW_SECONDS``, or was served
``MARGIN_BYTES`` more. If there is none, the answer is that the server is busy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import anyio

from swarm.host import PeerId
from swarm.recent import RecentAmounts

STREAMS = 512
STREAMS_PER_PEER = 4
REQUESTS = 128  # under way
TURNS = 64
SLOW_SECONDS = 1.0
LOOK_SECONDS = 0.5  # between two looks, while a part waits, at who has become slow
IDLE_SECONDS = 5.0  # a stream is closed after so long without a request
MARGIN_BYTES = 64 * 1024
HALF_LIFE_SECONDS = 60.0  # of what a peer was served


@dataclass(eq=False, slots=True)
class Upload:
    """One stream, and the request under way on it."""

    peer: PeerId
    network: str  # from which the peer is connected; empty if unknown
    standing: float  # reputation
    scope: anyio.CancelScope  # cancelled when it is pushed out
    moved_at_seconds: float  # since when we wait for the peer: to ask, or to take the part that is being sent
    is_under_way: bool = False
    has_turn: bool = False
    is_quick: bool = False  # the last part was taken at once
    called: anyio.Event = field(default_factory=anyio.Event)  # its turn has come


class UploadTurns:
    """The open streams of a server; ``turns`` of them are sent to at the same time."""

    def __init__(self, turns: int = TURNS) -> None:
        self.pushed_out = 0
        self._turns = turns
        self._uploads: list[Upload] = []
        self._waiting: list[Upload] = []
        self._by_peer = RecentAmounts(HALF_LIFE_SECONDS)
        self._by_network = RecentAmounts(HALF_LIFE_SECONDS)

    def open(self, newcomer: Upload, now_seconds: float) -> bool:
        """Adds a stream; returns False if there is no room for it. ``close`` must follow True."""
        own = [upload for upload in self._uploads if upload.peer == newcomer.peer]
        if len(own) >= STREAMS_PER_PEER or len(self._uploads) >= STREAMS:
            pushed_out = _longest_idle(own if len(own) >= STREAMS_PER_PEER else self._uploads)
            if pushed_out is None:
                return False
            self._push_out(pushed_out)
        self._uploads.append(newcomer)
        return True

    def begin(self, upload: Upload, now_seconds: float) -> bool:
        """Whether the request that came on this stream is answered now. ``end`` must follow True."""
        under_way = [other for other in self._uploads if other.is_under_way]
        if len(under_way) >= REQUESTS:
            pushed_out = self._worse_than(upload, under_way, now_seconds)
            if pushed_out is None:
                return False
            self._push_out(pushed_out)
        upload.is_under_way = True
        return True

    def end(self, upload: Upload, now_seconds: float) -> None:
        upload.is_under_way, upload.moved_at_seconds = False, now_seconds

    def _push_out(self, upload: Upload) -> None:
        self._uploads.remove(upload)
        upload.scope.cancel()
        self.pushed_out += 1

    def close(self, upload: Upload) -> None:
        """May be called for a stream that was pushed out."""
        if upload in self._uploads:
            self._uploads.remove(upload)
        if upload in self._waiting:
            self._waiting.remove(upload)
        self._call(anyio.current_time())

    async def turn(self, upload: Upload) -> None:
        """Waits until a part may be sent on this stream. ``end_turn`` must follow."""
        self._waiting.append(upload)
        upload.called = anyio.Event()
        self._call(anyio.current_time())
        while not upload.called.is_set():
            with anyio.move_on_after(LOOK_SECONDS):
                await upload.called.wait()
            self._call(anyio.current_time())

    def end_turn(self, upload: Upload, sent_bytes: int, now_seconds: float) -> None:
        upload.has_turn = False
        upload.moved_at_seconds = now_seconds
        self._by_peer.add(upload.peer, sent_bytes, now_seconds)
        self._by_network.add(upload.network or upload.peer, sent_bytes, now_seconds)
        self._call(now_seconds)

    def _call(self, now_seconds: float) -> None:
        moving = sum(
            upload.has_turn and now_seconds - upload.moved_at_seconds < SLOW_SECONDS for upload in self._uploads
        )
        while self._waiting and moving < self._turns:
            first = min(self._waiting, key=lambda upload: self._order(upload, now_seconds))
            self._waiting.remove(first)
            first.has_turn, first.moved_at_seconds = True, now_seconds
            first.called.set()
            moving += 1

    def _order(self, upload: Upload, now_seconds: float) -> tuple[float, float, float]:
        """The least is served first."""
        by_network = self._by_network.of(upload.network or upload.peer, now_seconds)
        return -upload.standing, by_network, self._by_peer.of(upload.peer, now_seconds)

    def _worse_than(self, newcomer: Upload, holders: Collection[Upload], now_seconds: float) -> Upload | None:
        """The holder that is served last, if it must make room for the newcomer."""
        ours = self._order(newcomer, now_seconds)
        leaving: list[tuple[float, bool, tuple[float, float, float], Upload]] = []
        for holder in holders:
            theirs = self._order(holder, now_seconds)
            is_slow = holder.has_turn and now_seconds - holder.moved_at_seconds >= SLOW_SECONDS
            has_more = any(t - o >= MARGIN_BYTES for t, o in zip(theirs[1:], ours[1:], strict=True))
            if theirs[0] > ours[0] or (theirs[0] == ours[0] and (is_slow or has_more)):
                leaving.append((theirs[0], is_slow, theirs, holder))
        return max(leaving, key=lambda each: each[:3])[3] if leaving else None


def _longest_idle(uploads: Iterable[Upload]) -> Upload | None:
    idle = [upload for upload in uploads if not upload.is_under_way]
    return min(idle, key=lambda upload: upload.moved_at_seconds, default=None)
