"""Why a peer that was met is in another swarm: its manifest is asked for, and compared with ours.

Two friends who run different releases, or list different tasks, dial each other and part at once. The words of this
file tell them why. A peer is asked once in ``ASK_AGAIN_SECONDS``; what it answers is bounded, and changes nothing but
these words.
"""

from __future__ import annotations

import logging
import math

import anyio

from protocol.errors import StarlingError
from protocol.limits import MANIFEST_BYTES
from protocol.manifest import Manifest, decode_manifest, difference
from protocol.streams.manifest_messages import MANIFEST_PROTOCOL
from swarm.host import Host, PeerId
from swarm.stream_reader import StreamReader, asking, read_frame

ASK_AGAIN_SECONDS = 600.0
ASK_SECONDS = 5.0
PEERS_REMEMBERED = 64
SILENT = "it does not say what it trains on; its release may be an older one"

_logger = logging.getLogger(__name__)


class OtherSwarms:
    """``manifest`` is that of our open swarm; None asks nobody, for a private cluster's peers part in the handshake."""

    def __init__(self, host: Host, manifest: Manifest | None) -> None:
        self._host, self._manifest = host, manifest
        self._met: dict[PeerId, tuple[float, str]] = {}  # when, and why it is in another swarm; the oldest first

    async def note(self, peer: PeerId) -> None:
        """Asks a connected peer that named another swarm for its manifest, unless it was asked a short time ago."""
        now_seconds = anyio.current_time()
        met_at_seconds, why = self._met.pop(peer, (-math.inf, SILENT))
        is_new = now_seconds - met_at_seconds > ASK_AGAIN_SECONDS
        # Kept before the answer is there: a second stream of the peer does not ask again in the meantime.
        self._met[peer] = (now_seconds if is_new else met_at_seconds, why)
        while len(self._met) > PEERS_REMEMBERED:
            del self._met[next(iter(self._met))]
        if not is_new or self._manifest is None:
            return
        try:
            async with asking(self._host, peer, MANIFEST_PROTOCOL, seconds=ASK_SECONDS) as stream:
                reader = StreamReader(stream, stall_seconds=ASK_SECONDS)
                theirs = decode_manifest(await read_frame(reader.exactly, max_bytes=MANIFEST_BYTES, what="manifest"))
        except StarlingError as error:  # a release before 1.2, or one that is not ours
            _logger.debug("no manifest of %s: %s", peer, error)
        else:
            self._met[peer] = (now_seconds, difference(self._manifest, theirs))
        _logger.info("%s is in another swarm: %s", peer, self._met[peer][1])

    def latest(self) -> str | None:
        """Returns why the peer met last is in another swarm; None if none was met in ``ASK_AGAIN_SECONDS``."""
        for peer, (met_at_seconds, why) in reversed(self._met.items()):
            if anyio.current_time() - met_at_seconds <= ASK_AGAIN_SECONDS:
                return f"{peer} is in another swarm: {why}"
        return None
