"""The completions of one generation, as they wait for, run in and end in vLLM. No vLLM, no torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from node.engines.complete_groups import CompleteGroups
from node.engines.resumption import SamplingStart
from protocol.streams.engine_batches import HandOver, Sampled


class Completions:
    """Which completions wait, which run, and what was sampled of each."""

    def __init__(self, starts: Sequence[SamplingStart], groups: int, hand_over: HandOver) -> None:
        self._hand_over = hand_over
        self._owners = owners = [start for start in starts for _ in range(start.completions)]
        self._waiting = deque(range(len(owners)))  # by number, in the order of the starts
        self._running: set[int] = set()
        self._token_ids: list[list[int]] = [[] for _ in owners]
        self._logps: list[list[float]] = [[] for _ in owners]
        self._groups = CompleteGroups(None, starts, groups)

    @property
    def complete_groups(self) -> int:
        return self._groups.count

    @property
    def running(self) -> frozenset[int]:
        return frozenset(self._running)

    @property
    def done(self) -> bool:
        return not self._waiting and not self._running

    def begin(self, rows: int) -> Iterator[tuple[int, SamplingStart]]:
        """Yields the numbers of those that begin now, so that at most ``rows`` run, each with its start."""
        while self._waiting and len(self._running) < rows:
            number = self._waiting.popleft()
            self._running.add(number)
            yield number, self._owners[number]

    def sampled(self, number: int, token_ids: Sequence[int], logps: Sequence[float], *, ended: bool) -> None:
        """Appends what was sampled of a running completion. Once its group is complete, that is handed over."""
        self._token_ids[number].extend(token_ids)
        self._logps[number].extend(logps)
        if ended:
            self._running.remove(number)
            for each in self._groups.ended(np.array([number])).tolist():
                self._hand_over(each, self._taken(each))

    def rest(self) -> list[Sampled]:
        """Tokens and log-probabilities of each, in the order of the starts; some may be empty, and those handed over
        are."""
        return [self._taken(number) for number in range(len(self._owners))]

    def _taken(self, number: int) -> Sampled:
        token_ids, self._token_ids[number] = self._token_ids[number], []
        logps, self._logps[number] = self._logps[number], []
        return np.array(token_ids, np.int64), np.array(logps, np.float32)
