"""What is remembered of answers sampled before, by this engine and by others: which token followed which context."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from node.kernels.cpu_drafts import CLASSES, ENTRY, LONGEST_ORDER, begin

ENTRIES: Final = 1 << 20  # 12 bytes each; an answer takes five for each of its tokens, and replaces older ones
ANSWERS_WAITING: Final = 4096  # the newest of those that came since the last call of the engine


class AnswerIndex:
    """At most ``ENTRIES`` entries; one thread reads and writes them, any thread may call ``remember``."""

    def __init__(self) -> None:
        self.table = np.zeros(ENTRIES, dtype=ENTRY)
        self.counts = np.zeros((CLASSES, 2), dtype=np.float32)
        self._waiting: deque[np.ndarray[tuple[int], np.dtype[np.int64]]] = deque(maxlen=ANSWERS_WAITING)

    def remember(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> None:
        """Takes an answer of another policy; it counts from the next ``look_at_waiting`` on."""
        self._waiting.append(np.array([*prompt_ids, *answer_ids], dtype=np.int64))

    def look_at_waiting(self) -> None:
        tail = np.empty(LONGEST_ORDER, dtype=np.int64)
        while self._waiting:
            begin(self._waiting.popleft(), tail, self.table, self.counts)
