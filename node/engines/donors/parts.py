"""A donor's part of one call: its requests, its job, and its results."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from node.engines.donors.donor import Donor, Job
from node.engines.engine import GenerationProgress, GenerationRequest, Sampling
from node.engines.resumption import SamplingStart, progress_of, starts_of, token_limit
from node.policy.policy import Policy
from protocol.streams.engine_batches import SamplingBatch, Start

LATE: Final = 1.5  # times the time in which everything should have ended: then donors are interrupted
LATE_SECONDS: Final = 0.5  # at least so much after the own engine has ended
INTERRUPT_SECONDS: Final = 5.0  # for a donor that was interrupted to send what it has
LOOK_SECONDS: Final = 0.02


@dataclass(slots=True, eq=False)
class DonorPart:
    """Requests ``begin`` to ``end``."""

    donor: Donor
    begin: int
    end: int
    requests: Sequence[GenerationRequest]
    starts: list[SamplingStart]
    limits: list[int]
    job: Job
    late: bool = False  # it was interrupted, or given up, because it took too long
    tokens: int = 0  # of its samples that are used
    groups_done: int = 0

    @classmethod
    def of(
        cls,
        donor: Donor,
        requests: Sequence[GenerationRequest],
        begin: int,
        sampling: Sampling,
        policy: Policy,
        *,
        rows: int,
        version: int,
    ) -> DonorPart:
        """Raises as ``token_limit`` does."""
        limits = [token_limit(each, vocabulary=policy.vocabulary, context=policy.context) for each in requests]
        starts = starts_of(requests, limits)
        asked = tuple(Start(each.request, tuple(each.prefix_ids), each.completions, each.limit) for each in starts)
        seed = random.Random(f"{sampling.seed}/{donor.peer}").getrandbits(63)
        batch = SamplingBatch(asked, len(requests), sampling.temperature, seed, rows, None)
        return cls(donor, begin, begin + len(requests), requests, starts, limits, Job(batch, version))

    def launch(self) -> None:
        """Hands it to the donor, unless nothing is to be sampled: begun completions may be at their limits."""
        if self.starts:
            self.donor.begin(self.job)
        else:
            self.job.sampled = []
            self.job.done.set()

    @property
    def completions(self) -> int:
        return sum(each.completions for each in self.starts)

    def progress(self, eos_ids: Sequence[int]) -> list[GenerationProgress]:
        """Returns the progress of each of its requests, in their order, and sets ``tokens`` and ``groups_done`` by it.

        The job must have its samples: one sequence for each completion of ``starts``.
        """
        sampled = self.job.sampled or []
        reached = progress_of(self.requests, self.starts, sampled, self.limits, self.job.version, eos_ids)
        self.tokens = sum(len(token_ids) for token_ids, _ in sampled)
        self.groups_done = sum(map(is_complete, self.requests, reached))
        return reached


def wait_for_parts(
    parts: Sequence[DonorPart],
    has_enough: Callable[[], bool],
    clock: Callable[[], float],
    *,
    began: float,
    should_take_seconds: float,
) -> None:
    """Returns once every donor has ended its part, also because it was late or there is enough and it was interrupted,
    or does not answer to that: its session is then closed. The own engine has ended."""
    now = clock()
    late_at = max(now + LATE_SECONDS, began + LATE * max(should_take_seconds, now - began))
    given_up_at = math.inf
    while running := [part for part in parts if not part.job.done.is_set()]:
        now = clock()
        if now > given_up_at:
            break
        if given_up_at == math.inf and (now > late_at or has_enough()):
            given_up_at = now + INTERRUPT_SECONDS
            for part in running:
                part.late = now > late_at
                part.job.stop.set()
        running[0].job.done.wait(LOOK_SECONDS)
    for part in running:
        part.late = True
        part.donor.close(f"it sent nothing for {INTERRUPT_SECONDS:g} s after it was interrupted")


def ended(request: GenerationRequest) -> int:
    return len(request.begun.samples) if request.begun is not None else 0


def work_of(request: GenerationRequest) -> int:
    """Returns how many completions of a request are to be sampled."""
    return request.completions - ended(request)


def is_complete(request: GenerationRequest, reached: GenerationProgress) -> bool:
    return len(reached.samples) == request.completions


def newly_ended(requests: Sequence[GenerationRequest], reached: Sequence[GenerationProgress]) -> int:
    """Returns how many completions have ended that had not before."""
    return sum(len(each.samples) for each in reached) - sum(map(ended, requests))


def new_tokens(requests: Sequence[GenerationRequest], reached: Sequence[GenerationProgress]) -> int:
    before = sum(each.begun.tokens for each in requests if each.begun is not None)
    return sum(each.tokens for each in reached) - before
