"""The requests of one call whose end was reported to the learner before the call ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from node.engines.engine import Ended, GenerationProgress, GenerationRequest
from node.engines.resumption import SamplingStart, progress_of
from protocol.streams.engine_batches import Sampled


class ToldRequests:
    """Tells of each request once. What was told stays as it was, also where an engine is lost and the batch is sampled
    anew: it may have been learnt from."""

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        starts: Sequence[SamplingStart],
        limits: Sequence[int],
        version: int,
        eos_ids: Sequence[int],
        tell: Ended | None,
    ) -> None:
        self._requests, self._starts, self._limits = requests, starts, limits
        self._version, self._eos_ids, self._tell = version, eos_ids, tell
        self._told: dict[int, GenerationProgress] = {}

    def group_ended(self, index: int, sampled: Sequence[Sampled]) -> None:
        """Takes what was sampled of the completions of request ``index``; all of them have ended."""
        if self._tell is None or index in self._told:
            return
        starts = [replace(start, request=0) for start in self._starts if start.request == index]
        request, limit = [self._requests[index]], [self._limits[index]]
        (self._told[index],) = progress_of(request, starts, sampled, limit, self._version, self._eos_ids)
        self._tell(index, self._told[index])

    def in_place_of(self, reached: Sequence[GenerationProgress]) -> list[GenerationProgress]:
        """Returns the progress of every request: as it was told, or as ``reached`` has it."""
        return [self._told.get(index, progress) for index, progress in enumerate(reached)]
