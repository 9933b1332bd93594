"""Answers ``/starling/manifest/1``: a peer that knows an address alone asks which open swarm it met.

A peer is answered ``QUESTIONS`` times at once and once each ``QUESTION_EVERY_SECONDS`` afterwards; further streams are
reset. A private cluster gives its manifest in the handshake, to members, and serves none of this.
"""

from __future__ import annotations

import anyio

from protocol.errors import DeadlineError, UnreachableError
from protocol.manifest import Manifest
from protocol.streams.manifest_messages import MANIFEST_PROTOCOL, manifest_frame
from swarm.host import Host, Stream
from swarm.peers.question_limits import QuestionLimits

QUESTIONS = 4
QUESTION_EVERY_SECONDS = 10.0
SEND_SECONDS = 10.0


class ManifestAnswers:
    """Serves one manifest, which never changes."""

    def __init__(self, host: Host, manifest: Manifest) -> None:
        self._frame = manifest_frame(manifest)
        self._limits = QuestionLimits(host, at_once=QUESTIONS, every_seconds=QUESTION_EVERY_SECONDS)
        host.handle(MANIFEST_PROTOCOL, self._on_stream)

    async def _on_stream(self, stream: Stream) -> None:
        if not self._limits.may_ask(stream.peer):
            raise UnreachableError(
                f"{stream.peer} asks for the manifest more than once in {QUESTION_EVERY_SECONDS:g} s"
            )
        with anyio.move_on_after(SEND_SECONDS) as scope:
            await stream.send(self._frame)
        if scope.cancelled_caught:
            raise DeadlineError(f"{stream.peer} read nothing for {SEND_SECONDS:g} s")
