"""One ``Turns`` for engines that sample at once, each on a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from node.engines.engine import Heard, Sample, Turns

_LOOK_SECONDS: Final = 0.002  # of an engine that waits, between two looks at what came for others, too


class SharedTurns:
    """What ``turns`` raises is raised to every part from then on."""

    def __init__(self, turns: Turns, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._turns, self._sleep = turns, sleep
        self._lock = threading.Lock()
        self._asked: dict[int, tuple[TurnsPart, int]] = {}  # by the number given to ``turns``
        self._count = 0
        self._raised: BaseException | None = None

    def part(self, requests: Sequence[int]) -> TurnsPart:
        """Returns the turns of an engine whose requests are these of all."""
        return TurnsPart(self, requests)

    @property
    def rewrites(self) -> bool:
        return self._turns.rewrites

    def acted(self, part: TurnsPart, conversation: int, request: int, so_far: Sample) -> None:
        with self._lock:
            self._asked[self._count] = part, conversation
            self._turns.acted(self._count, request, so_far)
            self._count += 1

    def replies(self, part: TurnsPart, *, wait: bool) -> list[tuple[int, Heard | None]]:
        while True:
            with self._lock:
                if self._raised is not None:
                    raise self._raised
                try:
                    came = self._turns.replies(wait=False)
                except BaseException as error:
                    self._raised = error
                    raise
                for number, heard in came:
                    of_part, conversation = self._asked.pop(number)
                    of_part.came.append((conversation, heard))
                found, part.came = part.came, []
            if found or not wait:
                return found
            self._sleep(_LOOK_SECONDS)


class TurnsPart:
    """``Turns`` of one engine."""

    def __init__(self, shared: SharedTurns, requests: Sequence[int]) -> None:
        self._shared, self._requests = shared, requests
        self.came: list[tuple[int, Heard | None]] = []  # and was not taken; the lock of ``shared`` guards it

    @property
    def rewrites(self) -> bool:
        return self._shared.rewrites

    def acted(self, conversation: int, request: int, so_far: Sample) -> None:
        self._shared.acted(self, conversation, self._requests[request], so_far)

    def replies(self, *, wait: bool) -> list[tuple[int, Heard | None]]:
        return self._shared.replies(self, wait=wait)
