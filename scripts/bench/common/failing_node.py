"""A node's parts in which operations of torch fail as if memory ran out: for ``scripts.bench.out_of_memory``."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from node.averaging.weight_averager import WeightAverager
from node.checkpoints.checkpoints import BackgroundCheckpoints, Snapshot
from node.engines.engine import Ended, Enough, GenerationProgress, GenerationRequest, Sampling, Weights
from node.engines.torch import TorchEngine
from node.learner.state.learner_state import LearnerState
from node.learner.steps.optimizer import MasterAdamW, StepReport

OTHER: Final = "passes"
ERRORS_A_ROUND: Final = 2  # as many as a phase is repeated as it is
PATIENCE_ROUNDS: Final = 6  # averaging and checkpoints do not come in every round

Counts = Counter[str]  # operations by kind


def allocates(func: Any) -> bool:
    """Returns whether an operation of torch makes a tensor with memory of its own: no view, and no write in place."""
    return any(each.alias_info is None and "Tensor" in str(each.type) for each in func._schema.returns)


class Injector(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, counts operations that allocate, by part of the round and kind; the chosen ones raise."""

    def __init__(self, seed: int, errors: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._random = random.Random(seed)
        self._part = OTHER
        self._counts: defaultdict[str, Counts] = defaultdict(Counter)  # by part, in the round under way
        self._known: dict[str, Counts] = {}  # by part, in the last round that had it
        self._chosen: set[tuple[str, str, int]] = set()  # part, kind, and which one of the round
        self._rounds = 0
        self.left = errors
        self.raised: Counter[str] = Counter()  # by part
        self.kinds: set[str] = set()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Within the context, operations belong to this part of the round."""
        before, self._part = self._part, name
        try:
            yield
        finally:
            self._part = before

    def next_round(self) -> None:
        """Chooses errors among the operations of earlier rounds; those whose place has not come are chosen anew."""
        self._known |= self._counts
        self._counts = defaultdict(Counter)
        self._rounds += 1
        if self._rounds % PATIENCE_ROUNDS == 0:
            self.left += len(self._chosen)
            self._chosen.clear()
        while self._known and self.left and len(self._chosen) < ERRORS_A_ROUND:
            part = self._random.choice(sorted(self._known))
            kind = self._random.choice(sorted(self._known[part]))
            place = (part, kind, self._random.randrange(self._known[part][kind]))
            if place not in self._chosen:
                self._chosen.add(place)
                self.left -= 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kind = str(func)
        if not allocates(func):
            return func(*args, **(kwargs or {}))
        place = (self._part, kind, self._counts[self._part][kind])
        self._counts[self._part][kind] += 1
        if place in self._chosen:
            self._chosen.remove(place)
            self.raised[self._part] += 1
            self.kinds.add(kind)
            raise torch.OutOfMemoryError(f"CUDA out of memory. Injected at operation {place[2]} of {kind}")
        return func(*args, **(kwargs or {}))


class Engine(TorchEngine):
    """The node's engine; names its parts of the round."""

    injector: Injector

    def advance(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        enough: Enough | None = None,
        ended: Ended | None = None,
    ) -> list[GenerationProgress]:
        with self.injector.part("generating"):
            return super().advance(requests, sampling, enough)

    def load_weights(self, version: int, weights: Weights) -> None:
        with self.injector.part("weights for the engine"):
            super().load_weights(version, weights)


class Optimizer(MasterAdamW):
    injector: Injector

    def step(self, *, rate_scale: float = 1.0, divide_by: float = 1.0) -> StepReport:
        with self.injector.part("step"):
            return super().step(rate_scale=rate_scale, divide_by=divide_by)


class Averager(WeightAverager):
    injector: Injector

    def after_round(self, state: LearnerState) -> bool:
        with self.injector.part("averaging"):
            return super().after_round(state)


class Checkpoints(BackgroundCheckpoints):
    injector: Injector

    def save(self, snapshot: Snapshot, *, copy: bool = True) -> None:
        with self.injector.part("checkpoint"):
            super().save(snapshot, copy=copy)
