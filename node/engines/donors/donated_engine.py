"""``Engine``: the learner's own engine and those of its donors, which generate a round's groups together.

    shares → own engine and donors sample at once, from the same version → donors' log-probabilities are checked
    → what a slow, lost or lying donor left over is sampled by the own engine

A donor costs its own share only: what it has not sent when the others have long ended is interrupted, and goes on here
from the tokens that it did send. Nothing of a donor's batch counts before its answers and a random sample of its
log-probabilities were checked; one that fails is dropped for good. Samples of donors are the learner's own: same
version, same segments. What a round samples depends on how fast everybody was, so that rounds with donors are not
repeated token for token. ``generate``, by which evaluation measures, uses the own engine alone.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from node.engines.donors.donor import DONOR_PATIENCE, Donor, Job
from node.engines.donors.donor_source import DonorSource, WaitingDonor
from node.engines.donors.donor_weights import DonorWeights
from node.engines.donors.logp_checks import (
    CheckedSoFar,
    chosen_to_check,
    fault_of_claims,
    fault_so_far,
    measure,
)
from node.engines.donors.shares import Pace, expected_seconds, most_after, share_out
from node.engines.encoded_weights import EncodedWeights
from node.engines.engine import Enough, GenerationProgress, GenerationRequest, Sample, Sampling, Weights
from node.engines.process.remote_engine import ModelExpected, Patience
from node.engines.resumption import SamplingStart, progress_of, starts_of, token_limit
from node.engines.torch import TorchEngine
from node.events import DonorShare, DonorsShared
from node.policy.weight_layout import layout_of
from protocol.streams.engine_batches import SamplingBatch, Start

log = logging.getLogger(__name__)

LATE: Final = 1.5  # times the time in which everything should have ended: then donors are interrupted
LATE_SECONDS: Final = 0.5  # at least so much after the own engine has ended
INTERRUPT_SECONDS: Final = 5.0  # for a donor that was interrupted to send what it has
LOOK_SECONDS: Final = 0.02
RESTS_AFTER: Final = 3  # losses in a row
FIRST_REST_SECONDS: Final = 60.0
LONGEST_REST_SECONDS: Final = 3600.0


@dataclass(slots=True)
class _Past:
    """What is remembered of a donor over its sessions."""

    pace: Pace = field(default_factory=Pace)
    finished: int = 0  # the most completions that it finished in time, halved when it was late
    losses_in_a_row: int = 0
    rests_until_seconds: float = 0.0
    checked: CheckedSoFar = field(default_factory=CheckedSoFar)
    dropped: bool = False
    tokens: int = 0  # used, since this process started


@dataclass(slots=True, eq=False)
class _Part:
    """A donor's share of one call: requests ``begin`` to ``end``."""

    donor: Donor
    begin: int
    end: int
    completions: int
    starts: list[SamplingStart]
    limits: list[int]
    job: Job
    tokens: int = 0  # of its samples that are used
    groups_done: int = 0


class DonatedEngine:
    """Call it from one thread at a time. ``own`` is in this process: its weights check what donors claim."""

    def __init__(
        self,
        own: TorchEngine,
        source: DonorSource,
        *,
        report: Callable[[DonorsShared], None],
        wall_clock: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        patience: Patience = DONOR_PATIENCE,
        draws: random.Random | None = None,
    ) -> None:
        """``draws`` chooses what is checked: nobody else may know it."""
        self.own, self._source, self._report = own, source, report
        self._wall_clock, self._clock, self._patience = wall_clock, clock, patience
        self._draws = draws or random.SystemRandom()
        policy = own.policy
        self._expected = ModelExpected(
            policy.family, layout_of(policy.trainable()).digest, policy.tokens.vocabulary, policy.tokens.eos_ids
        )
        self._weights = DonorWeights()
        self._donors: dict[str, Donor] = {}
        self._past: dict[str, _Past] = {}
        self._own_pace = Pace()
        self._had_donors = False  # in the last call
        self._should_take = 0.0  # seconds from the beginning of a call until every engine should have ended

    @property
    def donors(self) -> list[Donor]:
        """The donors in session."""
        return list(self._donors.values())

    @property
    def version(self) -> int:
        return self.own.version

    @property
    def owns_weights(self) -> bool:
        return self.own.owns_weights

    @property
    def in_process(self) -> bool:
        return True

    @property
    def rows(self) -> int:
        return self.own.rows

    @rows.setter
    def rows(self, rows: int) -> None:
        self.own.rows = rows

    def restores_from(self, whole: Callable[[], EncodedWeights]) -> None:
        self.own.restores_from(whole)

    def release(self) -> None:
        self.own.release()

    def load_weights(self, version: int, weights: Weights) -> None:
        self.own.load_weights(version, weights)
        if self._donors:
            self._publish()

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[list[Sample]]:
        return self.own.generate(requests, sampling)

    def advance(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, enough: Enough | None = None
    ) -> list[GenerationProgress]:
        self._meet()
        ready = [donor for donor in self._donors.values() if donor.is_ready]
        began = self._clock()
        parts = self._shared_out(requests, sampling, ready, began) if len(requests) > 1 else []
        kept = parts[0].begin if parts else len(requests)
        try:
            progress = self._together(requests, kept, parts, sampling, enough, began)
        finally:
            for part in parts:  # also where the own engine ran out of memory: a later call finds them idle again
                part.job.stop.set()
        if self._donors or self._had_donors:
            self._tell(requests, kept, parts, progress, self._clock() - began)
        self._had_donors = bool(self._donors)
        return progress

    def close(self) -> None:
        """Ends all sessions with donors, which wait for the next learner then."""
        for donor in self._donors.values():
            donor.close()

    def _meet(self) -> None:
        """Begins sessions with donors that wait, and forgets those that are lost."""
        now = self._clock()
        for peer in [peer for peer, donor in self._donors.items() if donor.is_lost]:
            self._on_loss(peer, now)
        for waiting in self._source.waiting():
            past = self._past.setdefault(waiting.peer, _Past())
            if waiting.peer in self._donors or past.dropped or now < past.rests_until_seconds:
                continue
            self._donors[waiting.peer] = self._begun(waiting)
        if self._donors:
            self._publish()

    def _begun(self, waiting: WaitingDonor) -> Donor:
        return Donor(
            waiting.peer,
            waiting.name,
            lambda: self._source.use(waiting.peer),
            self._expected,
            self._weights,
            patience=self._patience,
            clock=self._clock,
        )

    def _on_loss(self, peer: str, now: float) -> None:
        past = self._past[peer]
        del self._donors[peer]
        past.losses_in_a_row += 1
        if past.losses_in_a_row >= RESTS_AFTER:
            rest = FIRST_REST_SECONDS * 2 ** min(past.losses_in_a_row - RESTS_AFTER, 10)
            past.rests_until_seconds = now + min(rest, LONGEST_REST_SECONDS)

    def _publish(self) -> None:
        if self._weights.version != self.own.version:
            self._weights.publish(self.own.version, self.own.policy.trainable())
            for donor in self._donors.values():
                donor.weights_changed()

    def _shared_out(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, ready: Sequence[Donor], now: float
    ) -> list[_Part]:
        """Gives the last requests to donors, which begin at once; the first, and oldest, stay here."""
        work = [_work_of(request) for request in requests]
        workers = [self._own_pace.worker(None)]
        workers += [
            self._past[donor.peer].pace.worker(most_after(self._past[donor.peer].finished, sum(work)))
            for donor in ready
        ]
        groups = share_out(work, workers)
        parts: list[_Part] = []
        begin = groups[0]
        for donor, count in zip(ready, groups[1:], strict=True):
            if count == 0:
                self._past[donor.peer].pace.doubt()
                continue
            parts.append(self._part(donor, requests, begin, begin + count, sampling, now))
            begin += count
        self._should_take = expected_seconds(work, groups, workers)
        for part in parts:
            part.donor.begin(part.job)
        return parts

    def _part(
        self,
        donor: Donor,
        requests: Sequence[GenerationRequest],
        begin: int,
        end: int,
        sampling: Sampling,
        now: float,
    ) -> _Part:
        policy, mine = self.own.policy, requests[begin:end]
        limits = [token_limit(each, vocabulary=policy.vocabulary, context=policy.context) for each in mine]
        starts = starts_of(mine, limits)
        asked = tuple(Start(each.request, tuple(each.prefix_ids), each.completions, each.limit) for each in starts)
        seed = random.Random(f"{sampling.seed}/{donor.peer}").getrandbits(63)
        batch = SamplingBatch(asked, len(mine), sampling.temperature, seed, self.own.rows, None)
        completions = sum(each.completions for each in starts)
        return _Part(donor, begin, end, completions, starts, limits, Job(batch, self.own.version, now))

    def _together(
        self,
        requests: Sequence[GenerationRequest],
        kept: int,
        parts: Sequence[_Part],
        sampling: Sampling,
        enough: Enough | None,
        began: float,
    ) -> list[GenerationProgress]:
        def own_enough(complete: int) -> bool:
            return enough is not None and enough(complete + sum(part.job.complete for part in parts))

        own_began = self._clock()
        progress = self.own.advance(requests[:kept], sampling, None if enough is None else own_enough)
        own_seconds = self._clock() - own_began
        if not own_enough(0) and all(map(_is_complete, requests[:kept], progress)):
            self._own_pace.observe(sum(map(_work_of, requests[:kept])), own_seconds)
        if not parts:
            return progress
        complete = sum(map(_is_complete, requests[:kept], progress))
        self._wait(parts, lambda: own_enough(complete), began)
        progress += [each.begun or GenerationProgress() for each in requests[kept:]]
        for part in parts:
            self._take(part, requests, progress, sampling.temperature)
        return self._finished(requests, progress, sampling, enough)

    def _wait(self, parts: Sequence[_Part], has_enough: Callable[[], bool], began: float) -> None:
        """Waits until every donor has ended its part, or it is late and was interrupted, or nothing answers."""
        now = self._clock()
        late_at = max(now + LATE_SECONDS, began + LATE * max(self._should_take, now - began))
        given_up_at = math.inf
        while not all(part.job.done.is_set() for part in parts):
            now = self._clock()
            if now > given_up_at:
                break
            if given_up_at == math.inf and (now > late_at or has_enough()):
                given_up_at = now + INTERRUPT_SECONDS
                for part in parts:
                    part.job.stop.set()
            _first_running(parts).wait(LOOK_SECONDS)
        for part in parts:
            if not part.job.done.is_set():
                part.donor.close(f"it sent nothing for {INTERRUPT_SECONDS:g} s after it was interrupted")

    def _take(
        self,
        part: _Part,
        requests: Sequence[GenerationRequest],
        progress: list[GenerationProgress],
        temperature: float,
    ) -> None:
        """Puts a donor's samples in their places, once they were checked."""
        job, past = part.job, self._past[part.donor.peer]
        if job.sampled is None:
            past.finished //= 2
            return
        fault = self._fault_of(part, temperature)
        if fault is not None:
            self._drop(part.donor, fault)
            return
        mine = requests[part.begin : part.end]
        eos_ids = self.own.policy.tokens.eos_ids
        reached = progress_of(mine, part.starts, job.sampled, part.limits, job.version, eos_ids)
        progress[part.begin : part.end] = reached
        part.tokens = sum(len(token_ids) for token_ids, _ in job.sampled)
        past.tokens += part.tokens
        part.groups_done = sum(map(_is_complete, mine, reached))
        past.losses_in_a_row = 0
        finished = sum(len(each.samples) for each in reached) - sum(_ended(each) for each in mine)
        if part.groups_done == len(mine):
            past.pace.observe(part.completions, job.seconds, job.setup_seconds)
            past.finished = max(past.finished, part.completions)
        elif finished < part.completions:  # it was late, unless there was enough
            past.pace.observe(max(1, finished), job.seconds, job.setup_seconds)
            past.finished = max(1, finished)

    def _fault_of(self, part: _Part, temperature: float) -> str | None:
        """Returns what a random sample of a donor's completions shows to be false, or None."""
        assert part.job.sampled is not None
        past, owners = self._past[part.donor.peer], part.job.batch.owners
        for index in chosen_to_check(part.job.sampled, self._draws):
            token_ids, claimed = part.job.sampled[index]
            measured = measure(self.own.policy, owners[index].prefix_ids, token_ids.tolist(), temperature)
            past.checked = past.checked.with_one(claimed, measured)
            fault = fault_of_claims(claimed, measured)
            if fault is not None:
                return fault
        return fault_so_far(past.checked)

    def _drop(self, donor: Donor, because: str) -> None:
        log.error("donor %s is dropped for good: %s", donor.peer, because)
        self._past[donor.peer].dropped = True
        donor.close(because)
        self._source.drop(donor.peer, because)

    def _finished(
        self,
        requests: Sequence[GenerationRequest],
        progress: list[GenerationProgress],
        sampling: Sampling,
        enough: Enough | None,
    ) -> list[GenerationProgress]:
        """Samples here what donors left over, unless there is enough."""
        left = [at for at, request in enumerate(requests) if not _is_complete(request, progress[at])]
        complete = len(requests) - len(left)
        if not left or (enough is not None and enough(complete)):
            return progress
        again = [
            GenerationRequest(each.prompt_ids, each.completions, each.max_new_tokens, progress[at])
            for at, each in ((at, requests[at]) for at in left)
        ]
        seed = None if sampling.seed is None else random.Random(f"{sampling.seed}/left over").getrandbits(63)
        still_enough = None if enough is None else lambda more: enough(complete + more)
        for at, reached in zip(
            left, self.own.advance(again, Sampling(sampling.temperature, seed), still_enough), strict=True
        ):
            progress[at] = reached
        return progress

    def _tell(
        self,
        requests: Sequence[GenerationRequest],
        kept: int,
        parts: Sequence[_Part],
        progress: Sequence[GenerationProgress],
        seconds: float,
    ) -> None:
        new_tokens = sum(
            reached.tokens - (request.begun.tokens if request.begun else 0)
            for request, reached in zip(requests, progress, strict=True)
        )
        by_peer = {part.donor.peer: part for part in parts}
        self._report(
            DonorsShared(
                time_seconds=self._wall_clock(),
                groups=len(requests),
                own_groups=kept,
                tokens=new_tokens,
                seconds=seconds,
                donors=tuple(
                    self._share_of(donor, by_peer.get(donor.peer), new_tokens) for donor in self._donors.values()
                ),
            )
        )

    def _share_of(self, donor: Donor, part: _Part | None, new_tokens: int) -> DonorShare:
        past = self._past[donor.peer]
        if past.dropped:
            state = "dropped"
        elif donor.is_lost:
            state = "lost"
        elif part is not None:
            state = "generated"
        else:
            state = "ready" if donor.is_ready else "preparing"
        sampling_seconds = part.job.seconds if part is not None else 0.0
        return DonorShare(
            peer=donor.peer,
            name=donor.name,
            state=state,
            groups=part.end - part.begin if part is not None else 0,
            groups_done=part.groups_done if part is not None else 0,
            tokens=part.tokens if part is not None else 0,
            tokens_per_second=part.tokens / sampling_seconds if part is not None and sampling_seconds else None,
            share=part.tokens / new_tokens if part is not None and new_tokens else 0.0,
            setup_seconds=part.job.setup_seconds if part is not None else 0.0,
            tokens_total=past.tokens,
            because=donor.lost_because or "",
        )


def _ended(request: GenerationRequest) -> int:
    return len(request.begun.samples) if request.begun is not None else 0


def _work_of(request: GenerationRequest) -> int:
    """Returns how many completions of a request are to be sampled."""
    return request.completions - _ended(request)


def _is_complete(request: GenerationRequest, reached: GenerationProgress) -> bool:
    return len(reached.samples) == request.completions


def _first_running(parts: Sequence[_Part]) -> threading.Event:
    return next((part.job.done for part in parts if not part.job.done.is_set()), parts[0].job.done)
