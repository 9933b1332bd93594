"""Opening announcements once for all nodes of a simulated swarm, and what one opening takes."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final

from protocol import wire
from protocol.messages import Announcement

OPENED_REMEMBERED: Final = 16384


class SharedOpening:
    """Opens each announcement once for all nodes, and measures what one opening takes.

    All nodes have one clock and one swarm, so that the result is the same for each of them.
    """

    def __init__(self) -> None:
        self._open_envelope, self._open_body = wire.open_envelope, wire.open_body
        self._envelopes: OrderedDict[bytes, tuple[wire.Envelope, Announcement]] = OrderedDict()
        self._bodies: dict[bytes, Announcement] = {}
        self.asked, self.opened, self.cpu_seconds = 0, 0, 0.0

    def install(self) -> None:
        wire.open_envelope = self.envelope
        wire.open_body = self.body

    def uninstall(self) -> None:
        wire.open_envelope, wire.open_body = self._open_envelope, self._open_body

    @property
    def seconds_each(self) -> float:
        return self.cpu_seconds / max(1, self.opened)

    def envelope(self, raw: bytes, *, swarm_id: bytes, now_seconds: float) -> wire.Envelope:
        self.asked += 1
        known = self._envelopes.get(raw)
        if known is None:
            began = time.process_time()
            envelope = self._open_envelope(raw, swarm_id=swarm_id, now_seconds=now_seconds)
            known = self._envelopes[raw] = envelope, self._open_body(envelope)
            self.cpu_seconds += time.process_time() - began
            self.opened += 1
            self._bodies[envelope.payload] = known[1]
            if len(self._envelopes) > OPENED_REMEMBERED:
                _, (oldest, _) = self._envelopes.popitem(last=False)
                del self._bodies[oldest.payload]
        return known[0]

    def body(self, envelope: wire.Envelope) -> Announcement:
        known = self._bodies.get(envelope.payload)
        return known if known is not None else self._open_body(envelope)
