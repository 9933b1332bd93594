"""The memory of answers that this engine and others sampled before: which token followed which context, and
how answers take up their prompts."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from node.kernels.cpu_contexts import ENTRY_NUMBERS, LONGEST_ORDER
from node.kernels.cpu_drafts import CLASSES, FEATURE_WEIGHTS, PROMPT_TOKENS, begin, learn_answer

ENTRIES: Final = 1 << 18  # 64 bytes each; an answer takes up to six for each of its tokens, and replaces older ones
ANSWERS_WAITING: Final = 4096  # the newest of those that came since the last call of the engine

Ints = NDArray[np.int64]


@dataclass(slots=True)
class RowStates:
    """What guesses of rows depend on, as ``cpu_drafts`` describes it."""

    wholes: NDArray[np.uint64]
    tails: Ints
    parts: Ints
    facts: Ints

    @classmethod
    def of(cls, rows: int) -> RowStates:
        tails, parts = np.zeros((rows, LONGEST_ORDER), np.int64), np.zeros((rows, 2, PROMPT_TOKENS), np.int64)
        return cls(np.zeros(rows, np.uint64), tails, parts, np.zeros((rows, 3), np.int64))

    def first(self, rows: int) -> tuple[NDArray[np.uint64], Ints, Ints, Ints]:
        """Returns views of the first rows, in the order in which compiled loops take them."""
        return self.wholes[:rows], self.tails[:rows], self.parts[:rows], self.facts[:rows]

    def copy(self, source: Ints | int, rows: slice) -> None:
        """Copies the rows ``source`` to ``rows``."""
        for array in (self.wholes, self.tails, self.parts, self.facts):
            array[rows] = array[source]

    def begin(self, row: int, prompt_ids: Sequence[int] | Ints) -> None:
        """The row is at the end of its prompt."""
        tokens = np.array(prompt_ids, dtype=np.int64)
        self.wholes[row] = begin(tokens, self.tails[row], self.parts[row], self.facts[row])


class AnswerIndex:
    """At most ``ENTRIES`` entries; one thread reads and writes them, any thread may call ``remember``."""

    def __init__(self) -> None:
        self.table = np.zeros((ENTRIES, ENTRY_NUMBERS), dtype=np.int32)
        self.weights = np.zeros((FEATURE_WEIGHTS, 2), dtype=np.float32)
        self.counts = np.zeros((CLASSES, 2), dtype=np.float32)
        self._waiting: deque[tuple[Ints, Ints]] = deque(maxlen=ANSWERS_WAITING)

    def remember(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> None:
        """Takes an answer of another policy; it counts from the next ``look_at_waiting`` on."""
        self._waiting.append((np.array(prompt_ids, dtype=np.int64), np.array(answer_ids, dtype=np.int64)))

    def look_at_waiting(self) -> None:
        state = RowStates.of(1)
        while self._waiting:
            prompt_ids, answer = self._waiting.popleft()
            state.begin(0, prompt_ids)
            learn_answer(answer, *state.first(1), self.table, self.weights)
