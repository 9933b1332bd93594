"""A donor's part of one call: its requests, its job, and its results."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from node.engines.donors.donor import Donor, Job
from node.engines.engine import GenerationProgress, GenerationRequest, Sampling, Turns
from node.engines.resumption import (
    SamplingStart,
    by_completion,
    progress_of,
    row_of,
    sampled_since,
    starts_of,
    token_limit,
)
from node.engines.turns import RunningConversations, asked_of
from node.policy.policy import Policy
from protocol.streams.engine_batches import Sampled, SamplingBatch

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
        turns: Turns | None = None,
    ) -> DonorPart:
        """Raises as ``token_limit`` does."""
        limits = [token_limit(each, vocabulary=policy.vocabulary, context=policy.context) for each in requests]
        starts = starts_of(requests, limits)
        asked = asked_of(starts, requests, turns)
        seed = random.Random(f"{sampling.seed}/{donor.peer}").getrandbits(63)
        batch = SamplingBatch(asked, len(requests), sampling.temperature, seed, rows, None)
        job = Job(batch, version)
        if turns is not None:
            of_all = requests, starts, limits, turns, version, policy.tokens.eos_ids
            job.conversations = lambda: RunningConversations(*of_all)
        return cls(donor, begin, begin + len(requests), requests, starts, limits, job)

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
        sampled, job = self.job.sampled or [], self.job
        reached = progress_of(self.requests, self.starts, sampled, self.limits, job.version, eos_ids, job.reached)
        self.tokens = new_tokens(self.requests, reached)
        self.groups_done = sum(map(is_complete, self.requests, reached))
        return reached

    def claims(self) -> list[tuple[Sequence[int], Sampled]]:
        """Returns what the donor says that it sampled, each time after which tokens: a completion, or an action of a
        conversation. The job must have its samples."""
        found: list[tuple[Sequence[int], Sampled]] = []
        for completion, (start, sampled) in enumerate(by_completion(self.starts, self.job.sampled or ())):
            conversed, prefix_ids = self.job.reached.get(completion), start.prefix_ids
            if conversed is not None:
                prompt_ids = self.requests[start.request].prompt_ids
                before = len(start.begun.token_ids) if start.begun is not None else 0
                found += sampled_since(prompt_ids, conversed, before)
                prefix_ids = row_of(prompt_ids, conversed)
            found.append((prefix_ids, sampled))
        return found


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
