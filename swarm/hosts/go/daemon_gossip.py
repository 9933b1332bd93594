"""Announcements of one topic, through the daemon's GossipSub.

The daemon knows no validators: it has forwarded a message, if its signature is right, before we judge it, and it does
not say which neighbour it came from. What is kept of our verdicts above it:

- a message is delivered only if it is accepted, and equal content once, whoever published it;
- the peer that signed a message stands for the one that forwarded it while it is connected; the forwarder of all others
  is ``UNKNOWN``, so that they share the newcomers that ``swarm.announcements.gossip`` admits of one forwarder;
- a peer that signed ``REJECTIONS`` messages which no honest node sends is blocked.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable

import anyio
import anyio.lowlevel

from protocol import base58, limits
from protocol.errors import ProtocolError
from protocol.identity import PEER_ID_BYTES
from swarm.host import GossipVerdict, PeerId, Receiver, Validator
from swarm.hosts.go import daemon_messages as messages
from swarm.hosts.go.control import Frames, rubbish
from swarm.recent import Recent

log = logging.getLogger(__name__)

UNKNOWN: PeerId = ""
REJECTIONS = 8
AUTHORS_REMEMBERED = 1024  # that signed a rejected message; the one that did so longest ago is dropped first
CONTENTS_REMEMBERED = 8192
WAITING_BYTES = 8 << 20  # received and not yet judged; the oldest are dropped above it


class DaemonGossip:
    """What a host hears. ``is_known`` says whether a peer is connected, ``block`` drops one."""

    def __init__(
        self,
        own: PeerId,
        *,
        is_known: Callable[[PeerId], bool],
        is_blocked: Callable[[PeerId], bool],
        block: Callable[[PeerId], None],
    ) -> None:
        self.received_bytes = 0
        self.dropped = 0  # because judging did not keep up
        self._own = own
        self._is_known = is_known
        self._is_blocked = is_blocked
        self._block = block
        self._rejected: Recent[PeerId, int] = Recent(AUTHORS_REMEMBERED)  # messages
        self._seen: Recent[bytes, None] = Recent(CONTENTS_REMEMBERED)

    async def hear(self, frames: Frames, validate: Validator, on_message: Receiver) -> None:
        """Reads the messages of a subscription until it is cancelled. Raises ``HostEndedError`` and what the two raise.

        Reading goes ahead of judging: the daemon drops what is not read soon.
        """
        waiting: deque[bytes] = deque()
        waiting_bytes = 0
        more = anyio.Event()

        async def judge() -> None:
            nonlocal more, waiting_bytes
            while True:
                while waiting:
                    message = waiting.popleft()
                    waiting_bytes -= len(message)
                    self._judge(message, validate, on_message)
                    await anyio.lowlevel.checkpoint()
                more = anyio.Event()
                await more.wait()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(judge)
            while True:
                message = await frames.next()
                waiting.append(message)
                waiting_bytes += len(message)
                while waiting_bytes > WAITING_BYTES:
                    waiting_bytes -= len(waiting.popleft())
                    self.dropped += 1
                more.set()

    def _judge(self, message: bytes, validate: Validator, on_message: Receiver) -> None:
        try:
            published = messages.read_published(message)
        except ProtocolError as error:
            raise rubbish(error) from error
        content = published.content
        self.received_bytes += len(content)
        author = base58.to_text(published.author[:PEER_ID_BYTES])
        if author == self._own or self._is_blocked(author) or not self.note(content):
            return
        forwarder = author if self._is_known(author) else UNKNOWN
        too_long = len(content) > limits.ANNOUNCEMENT_BYTES
        verdict = GossipVerdict.REJECT if too_long else validate(forwarder, content)
        if verdict is GossipVerdict.ACCEPT:
            on_message(forwarder, content)
        elif verdict is GossipVerdict.REJECT:
            self._reject(author)

    def rejections(self, author: PeerId) -> int:
        return self._rejected.get(author, 0)

    def _reject(self, author: PeerId) -> None:
        count = self._rejected[author] = self.rejections(author) + 1
        if count >= REJECTIONS:
            log.info("%s signed %d announcements that no honest node sends: it is blocked", author, count)
            self._block(author)

    def note(self, content: bytes) -> bool:
        """Notes a message, of ours too. Returns whether it is new: equal content is one message."""
        digest = hashlib.blake2b(content, digest_size=16).digest()
        is_new = digest not in self._seen
        if is_new:
            self._seen[digest] = None
        return is_new
