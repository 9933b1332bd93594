"""What the process of a stage tells the one that lends it: which layers it holds, and what it computed.

holding    first, last (after it), layers (of the model), bytes
computed   tokens, seconds: since the last one, at most one in ``COMPUTED_SECONDS``
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Final, Protocol, TextIO

from protocol.streams import stage_messages as messages
from protocol.streams.stage_messages import StageRequest

COMPUTED_SECONDS: Final = 60.0


class _Held(Protocol):
    @property
    def held_bytes(self) -> int: ...
    @property
    def layers_in_all(self) -> int: ...


class StageEvents:
    """Writes events as lines of JSON; ``told`` of a ``StageSession``."""

    def __init__(self, out: TextIO, worker: _Held, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._worker, self._clock = out, worker, clock
        self._before, self._told_at = messages.StageBeat(0.0, 0), clock()

    def __call__(self, what: StageRequest | messages.StageBeat) -> None:
        match what:
            case messages.HoldLayers(first=first, last=last):
                worker = self._worker
                self._write("holding", first=first, last=last, layers=worker.layers_in_all, bytes=worker.held_bytes)
            case messages.StageBeat():
                self._computed(what)

    def _computed(self, beat: messages.StageBeat) -> None:
        if beat.computed_tokens < self._before.computed_tokens:  # of a new session
            self._before = messages.StageBeat(0.0, 0)
        tokens = beat.computed_tokens - self._before.computed_tokens
        if tokens and self._clock() - self._told_at >= COMPUTED_SECONDS:
            self._write("computed", tokens=tokens, seconds=beat.computed_seconds - self._before.computed_seconds)
            self._before, self._told_at = beat, self._clock()

    def _write(self, event: str, **fields: float) -> None:
        self._out.write(json.dumps({"event": event, **fields}) + "\n")
        self._out.flush()
