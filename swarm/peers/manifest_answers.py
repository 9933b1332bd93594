"""Answers ``/starling/manifest/1``: a peer that knows an address alone asks which open swarm it met.

A peer is answered ``QUESTIONS`` times at once and once each ``QUESTION_EVERY_SECONDS`` afterwards; further streams are
reset. A private cluster gives its manifest in the handshake, to members, and serves none of this.
"""

from __future__ import annotations

import anyio

from protocol.errors import UnreachableError
from protocol.manifest import Manifest
from protocol.streams.manifest_messages import MANIFEST_PROTOCOL, manifest_frame
from swarm.host import Host, PeerId, Stream
from swarm.stream_reader import send_within
from swarm.token_bucket import TokenBuckets

QUESTIONS = 4
QUESTION_EVERY_SECONDS = 10.0
SEND_SECONDS = 10.0
PEERS_REMEMBERED = 1024


class ManifestAnswers:
    """Serves one manifest, which never changes."""

    def __init__(self, host: Host, manifest: Manifest) -> None:
        self._frame = manifest_frame(manifest)
        self._limits: TokenBuckets[PeerId] = TokenBuckets(1 / QUESTION_EVERY_SECONDS, QUESTIONS, PEERS_REMEMBERED)
        host.handle(MANIFEST_PROTOCOL, self._on_stream)

    async def _on_stream(self, stream: Stream) -> None:
        if not self._limits.take(stream.peer, now_seconds=anyio.current_time()):
            raise UnreachableError(
                f"{stream.peer} asks for the manifest more than once in {QUESTION_EVERY_SECONDS:g} s"
            )
        await send_within(stream, self._frame, SEND_SECONDS)
