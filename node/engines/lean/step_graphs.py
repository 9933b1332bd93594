"""The decode step as a graph of launches: recorded once for a number of rows, and then started as one.

A step of a small model waits for the host, which starts some 180 kernels: more time than a large GPU computes. The
kernels read where rows lie from tensors that stay in place (``device_rows``), and no launch depends on lengths, so that
a recorded step is every later one of as many rows. Rows are rounded up to ``graph_rows``; what is computed for rows
that nobody reads is dropped.

Recording takes as long as two steps that the host starts. Every call of the engine records again, as its rows lie
elsewhere. From the second on a step is recorded before it is ever computed, for as many rows as were recorded before.

A test replays recorded calls on a CPU, and refuses what a graph cannot hold.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

log = logging.getLogger(__name__)
WARM_STEPS: Final = 2  # of as many rows, before one is first recorded: kernels are compiled
ROWS_OF_A_GRAPH: Final = 32  # above it, graphs for its multiples; below, for 8, 16 and 32
FEWEST_ROWS: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    replay: Callable[[], None]  # repeats the launches, which write ``result`` again
    result: Tensor
    keeps: object  # what must live as long


class Recorder(Protocol):
    def record(self, work: Callable[[], Tensor]) -> Recorded:
        """Returns ``work`` as launches that can be repeated. Raises ``RuntimeError`` where it cannot be."""

    def forget(self) -> None:
        """All that was recorded is gone."""


class CudaRecorder:
    """CUDA's stream capture (and HIP's, which torch gives the same name). Graphs share one pool of memory, so that only
    the result of the newest replay is to be read."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.forget()

    def forget(self) -> None:
        # torch refuses graphs in a pool whose earlier graphs are all gone.
        self._pool: Any = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], Tensor]) -> Recorded:
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        generator: Any = torch.cuda.default_generators[here.device.index]
        drawing = generator.clone_state()
        self._stream.wait_stream(here)
        try:
            with torch.cuda.stream(self._stream):
                # Another thread, such as a learner's, may take memory meanwhile.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    result = work()
                finally:
                    graph.capture_end()
        except BaseException:
            # A recording that fails leaves torch's generator as if it went on, and every later draw would raise; the
            # pool as well.
            generator.graphsafe_set_state(drawing)
            self.forget()
            raise
        here.wait_stream(self._stream)
        return Recorded(graph.replay, result, graph)


def recorder_for(device: torch.device) -> Recorder | None:
    """Returns None where launches cannot be recorded."""
    return CudaRecorder() if device.type == "cuda" else None


def graph_rows(rows: int, most: int) -> int:
    """Returns for how many rows the step of ``rows`` is computed: the next of 8, 16, 32, 64, 96 …, at most ``most``."""
    if rows > ROWS_OF_A_GRAPH:
        return min(most, -(-rows // ROWS_OF_A_GRAPH) * ROWS_OF_A_GRAPH)
    return min(most, max(FEWEST_ROWS, 1 << (rows - 1).bit_length()))


class StepGraphs:
    """The steps of one decoder. ``step`` computes the logits of so many rows from tensors that stay in place until
    ``forget``."""

    def __init__(self, step: Callable[[int], Tensor], recorder: Recorder | None) -> None:
        self._step, self._recorder = step, recorder
        self._steps = Counter[int]()  # computed so far, by rows
        self._recorded: dict[int, Recorded] = {}
        self._known = set[int]()  # rows of which steps were ever recorded
        self._results: Tensor | None = None  # of every recorded step: logits are large, and only the newest are read
        self._agreed = False

    def forget(self) -> None:
        """What the steps read is about to move."""
        self._recorded.clear()
        if self._recorder is not None:
            self._recorder.forget()
        self._results = None
        self._steps.clear()

    def logits(self, rows: int) -> Tensor:
        """Returns the logits of ``rows`` rows, (rows, V), which the next call may overwrite."""
        recorded = self._recorded.get(rows)
        if recorded is None and rows in self._known and not self._steps[rows]:
            recorded = self._recorded_at_once(rows)
        if recorded is not None:
            recorded.replay()
            return recorded.result
        logits = self._step(rows)
        self._steps[rows] += 1
        if self._recorder is not None and self._steps[rows] > WARM_STEPS:
            self._record(rows, logits, self._recorder)
        return logits

    def _recorded_at_once(self, rows: int) -> Recorded | None:
        """Returns the step of ``rows`` as it was recorded, not computed yet; None where that is refused, as where a
        kernel has to be compiled for the new addresses first."""
        assert self._recorder is not None
        try:
            self._recorded[rows] = self._recorder.record(lambda: self._kept(self._step(rows)))
        except RuntimeError:
            return None
        return self._recorded[rows]

    def _kept(self, logits: Tensor) -> Tensor:
        if self._results is None or len(self._results) < len(logits):
            self._results = torch.empty_like(logits)
        return self._results[: len(logits)].copy_(logits)

    def _record(self, rows: int, logits: Tensor, recorder: Recorder) -> None:
        """Records the step that has just been computed; computing it again changes nothing. The first recording of all
        must repeat ``logits``."""
        self._kept(logits)  # takes room for results outside of the graph's memory
        try:
            recorded = recorder.record(lambda: self._kept(self._step(rows)))
            if not self._agreed:
                recorded.replay()
                self._agreed = torch.allclose(recorded.result.float(), logits.float(), rtol=2**-6, atol=2**-4)
        except RuntimeError as error:
            log.warning("a decode step cannot be recorded as a graph, so each is started by the host: %s", error)
            self._drop()
            return
        if self._agreed:
            self._recorded[rows] = recorded
            self._known.add(rows)
            return
        log.warning("a recorded decode step does not repeat what it recorded, so each is started by the host")
        self._drop()

    def _drop(self) -> None:
        self._recorder = None
        self._known.clear()
