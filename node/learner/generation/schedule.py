"""When a round's groups are generated: in turn with learning, or ahead of it on a thread of their own.

``InTurn`` generates when asked: completions are sampled from the newest weights, and equal states give equal rounds.

``Ahead`` with ``most`` = s ≥ 1: while round n is learnt from, rounds up to n + s may be generated, each from the newest
weights that exist when it begins. A step makes one version at most, so a completion is at most s versions behind the
weights that learn from it; one that was interrupted and resumed is behind by as many more as rounds lie between. With
s = 1 that is exactly one, and equal states still give equal rounds; with more it depends on which of the two is faster.

For experiments both can hold the weights back by k versions (``engine.weights_behind``): what version v learns from is
then sampled by version max(v₀, v - k), where v₀ is the version at the start of the process.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from node.configuration import Config
from node.learner.generation.engine_weights import EngineWeights
from node.learner.generation.generation import EndedGroups, Generated, Generation, RoundPlan
from node.learner.generation.unfinished import UnfinishedGroup
from node.learner.memory.phases import PhaseRunner

Weights = Mapping[str, torch.Tensor]
PlanOf = Callable[[int], RoundPlan]  # of a round's number

log = logging.getLogger(__name__)


class GenerationSchedule(Protocol):
    def publish(self, version: int, weights: Weights) -> None:
        """Takes new weights. ``weights`` may be changed as soon as it returns."""

    def launch(self, round_number: int, unfinished: Sequence[UnfinishedGroup], plan_of: PlanOf) -> None:
        """Plans that round and those that may be generated ahead; ``unfinished`` is what the round before left over."""

    def take(self, listener: EndedGroups | None = None) -> Generated:
        """Returns what was generated for the round launched. Raises what generation raised. ``listener`` gets
        groups where these are generated on the caller's thread."""

    def release(self) -> None:
        """Gives back the engine's keys and values, unless it generates now."""

    def close(self) -> None:
        """Ends the thread after the token that is being sampled; what it generated for later rounds is lost.

        ``launch`` may be called again.
        """


def needs_own_weights(config: Config) -> bool:
    """Whether the engine must hold other weights than the learner's present ones."""
    return config.learner.max_staleness > 0 or config.objective.research.weights_behind > 0


def schedule_of(config: Config, generation: Generation, phases: PhaseRunner) -> GenerationSchedule:
    """Returns the schedule that is configured; ``phases`` repeats what runs out of memory.

    Raises ``ValueError`` for an engine that cannot follow it.
    """
    if needs_own_weights(config) and not generation.engine.owns_weights:
        raise ValueError(
            "learner.max_staleness and objective.research.weights_behind need an engine that owns its weights: this "
            "one samples from the learner's own modules"
        )
    behind = config.objective.research.weights_behind
    if config.learner.max_staleness == 0:
        return InTurn(generation, behind, phases)
    return Ahead(generation, behind, config.learner.max_staleness, phases)


class HeldBack:
    """Copies of the newest ``behind`` + 1 published weights."""

    def __init__(self, behind: int) -> None:
        self._kept: deque[tuple[int, Weights]] = deque(maxlen=behind + 1)

    def push(self, version: int, weights: Weights) -> tuple[int, Weights]:
        """Keeps a copy of ``weights``, one of each version; returns those to sample from now."""
        if not self._kept or self._kept[-1][0] != version:
            self._kept.append((version, {name: tensor.detach().clone() for name, tensor in weights.items()}))
        return self._kept[0]


class InTurn:
    """``GenerationSchedule`` on the caller's thread."""

    def __init__(self, generation: Generation, behind: int, phases: PhaseRunner) -> None:
        self._generation, self._phases = generation, phases
        self._held_back = HeldBack(behind) if behind else None
        self._engine_weights = EngineWeights(generation.engine)
        self._launched: tuple[RoundPlan, Sequence[UnfinishedGroup]] | None = None

    def publish(self, version: int, weights: Weights) -> None:
        self._phases.run("publish", lambda: self._load(version, weights), self.release)

    def launch(self, round_number: int, unfinished: Sequence[UnfinishedGroup], plan_of: PlanOf) -> None:
        self._launched = plan_of(round_number), unfinished

    def take(self, listener: EndedGroups | None = None) -> Generated:
        assert self._launched is not None, "take before launch"
        plan, unfinished = self._launched
        try:
            run = partial(self._generation.run, plan, unfinished, listener=listener)
            return self._phases.run("generate", run, self.release)
        finally:
            self.release()  # learning needs the memory

    def release(self) -> None:
        self._generation.engine.release()

    def close(self) -> None:
        return

    def _load(self, version: int, weights: Weights) -> None:
        if self._held_back is not None:
            version, weights = self._held_back.push(version, weights)
        self._engine_weights.load(version, weights)


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    generated: Future[Generated]
    begun: threading.Event  # it has chosen its weights


class Ahead:
    """``GenerationSchedule`` on a thread of its own, at most ``most`` rounds ahead of the round that is learnt from.

    Memory: one copy of the trained weights besides the engine's own, and ``behind`` more where they are held back.
    """

    def __init__(self, generation: Generation, behind: int, most: int, phases: PhaseRunner) -> None:
        self._generation, self._most, self._phases = generation, most, phases
        self._held_back = HeldBack(behind)
        self._engine_weights = EngineWeights(generation.engine)
        self._lock = threading.Lock()
        self._newest: tuple[int, Weights] | None = None  # not loaded yet
        self._thread: ThreadPoolExecutor | None = None
        self._halt = threading.Event()
        self._batches: deque[_Batch] = deque()
        self._next_round = 0
        self._unfinished: Sequence[UnfinishedGroup] = ()  # owned by the thread while there is one

    def publish(self, version: int, weights: Weights) -> None:
        newest = self._phases.run("publish", lambda: self._held_back.push(version, weights))
        with self._lock:
            self._newest = newest

    def launch(self, round_number: int, unfinished: Sequence[UnfinishedGroup], plan_of: PlanOf) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="generation")
            self._next_round, self._unfinished = round_number, unfinished
        while self._next_round <= round_number + self._most:
            begun = threading.Event()
            generated = self._thread.submit(self._generate, plan_of(self._next_round), begun)
            self._batches.append(_Batch(generated, begun))
            self._next_round += 1

    def take(self, listener: EndedGroups | None = None) -> Generated:
        generated = self._batches.popleft().generated.result()
        # The next one begins now, before anything is learnt from this one, so that its weights do not depend on timing.
        self._batches[0].begun.wait()
        return generated

    def release(self) -> None:
        return

    def close(self) -> None:
        if self._thread is None:
            return
        self._halt.set()
        self._thread.shutdown(wait=True, cancel_futures=True)
        for batch in self._batches:
            if not batch.generated.cancelled() and (error := batch.generated.exception()) is not None:
                log.error("a round that was generated ahead, and is no longer needed, failed", exc_info=error)
        self._batches.clear()
        self._halt.clear()
        self._thread = None

    def _generate(self, plan: RoundPlan, begun: threading.Event) -> Generated:
        with self._lock:
            newest, self._newest = self._newest, None
        begun.set()
        release = self._generation.engine.release
        if newest is not None:
            version, weights = newest
            self._phases.run("publish", lambda: self._engine_weights.load(version, weights), release)
        unfinished, halted = self._unfinished, self._halt.is_set
        generated = self._phases.run("generate", lambda: self._generation.run(plan, unfinished, halted), release)
        self._unfinished = generated.unfinished
        return generated
