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
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from node.engines.donors.donor import DONOR_PATIENCE, Donor
from node.engines.donors.donor_past import DonorPast
from node.engines.donors.donor_source import DonorSource, WaitingDonor
from node.engines.donors.donor_weights import DonorWeights
from node.engines.donors.logp_checks import chosen_to_check, fault_of_claims, fault_so_far, measure
from node.engines.donors.parts import DonorPart, is_complete, new_tokens, newly_ended, wait_for_parts, work_of
from node.engines.donors.shared_turns import SharedTurns
from node.engines.donors.shares import Pace, expected_seconds, share_out
from node.engines.encoded_weights import EncodedWeights
from node.engines.engine import (
    Ended,
    Engine,
    Enough,
    GenerationProgress,
    GenerationRequest,
    Sample,
    Sampling,
    Turns,
    Weights,
)
from node.engines.process.remote_engine import ModelExpected, Patience
from node.engines.turns import in_step
from node.events import DonorShare, DonorsShared
from node.policy.policy import Policy
from node.policy.weight_layout import layout_of

log = logging.getLogger(__name__)


class DonatedEngine:
    """Call it from one thread at a time. ``policy`` is in this process and has the weights of ``own.version`` whenever
    something is sampled, up to rounding: it checks what donors claim."""

    def __init__(
        self,
        own: Engine,
        policy: Policy,
        source: DonorSource,
        *,
        report: Callable[[DonorsShared], None],
        wall_clock: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        patience: Patience = DONOR_PATIENCE,
        draws: random.Random | None = None,
    ) -> None:
        """``draws`` chooses what is checked: nobody else may know it."""
        self.own, self._policy, self._source, self._report = own, policy, source, report
        self._wall_clock, self._clock, self._patience = wall_clock, clock, patience
        self._draws = draws or random.SystemRandom()
        self._expected = ModelExpected(
            policy.family, layout_of(policy.trainable()).digest, policy.tokens.vocabulary, policy.tokens.eos_ids
        )
        self._weights = DonorWeights()
        self._donors: dict[str, Donor] = {}
        self._past: dict[str, DonorPast] = {}
        self._own_pace = Pace()
        self._had_donors = False  # in the last call

    @property
    def donors(self) -> list[Donor]:
        """The donors in session."""
        return list(self._donors.values())

    @property
    def label(self) -> str:
        return f"{self.own.label} with donors" if self._donors else self.own.label

    @property
    def version(self) -> int:
        return self.own.version

    @property
    def owns_weights(self) -> bool:
        return self.own.owns_weights

    @property
    def in_process(self) -> bool:
        return self.own.in_process

    @property
    def rows(self) -> int:
        return self.own.rows

    @rows.setter
    def rows(self, rows: int) -> None:
        self.own.rows = rows

    def remember(self, prompt_ids: Sequence[int], answers: Sequence[Sequence[int]]) -> None:
        self.own.remember(prompt_ids, answers)

    def restores_from(self, whole: Callable[[], EncodedWeights]) -> None:
        self.own.restores_from(whole)

    def release(self) -> None:
        self.own.release()

    def load_weights(self, version: int, weights: Weights) -> None:
        self.own.load_weights(version, weights)
        if self._donors:
            self._publish()

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, turns: Turns | None = None
    ) -> list[list[Sample]]:
        return self.own.generate(requests, sampling, turns)

    def advance(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        enough: Enough | None = None,
        ended: Ended | None = None,
        turns: Turns | None = None,
    ) -> list[GenerationProgress]:
        """Conversations go at their own pace, and in step where a donor takes none."""
        self._meet()
        if turns is not None and (turns.rewrites or not all(each.converses for each in self._ready())):
            return in_step(self._advance, requests, sampling, enough, ended, turns)
        return self._advance(requests, sampling, enough, ended, turns)

    def _advance(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        enough: Enough | None = None,
        ended: Ended | None = None,
        turns: Turns | None = None,
    ) -> list[GenerationProgress]:
        began = self._clock()
        shared = None if turns is None else SharedTurns(turns)
        parts, should_take_seconds = self._shared_out(requests, sampling, shared)
        kept = parts[0].begin if parts else len(requests)
        try:
            for part in parts:
                part.launch()
            progress = self._own_part(requests[:kept], parts, sampling, enough, shared)
            if parts:
                complete = sum(map(is_complete, requests, progress))
                wait_for_parts(
                    parts,
                    lambda: enough is not None and enough(complete + sum(part.job.complete for part in parts)),
                    self._clock,
                    began=began,
                    should_take_seconds=should_take_seconds,
                )
                for part in parts:
                    progress += self._taken(part, sampling.temperature)
                progress = self._finished(requests, progress, sampling, enough, shared)
        finally:
            for part in parts:  # also where the own engine ran out of memory: a later call finds them idle again
                part.job.stop.set()
        if self._donors or self._had_donors:
            self._tell(requests, kept, parts, progress, self._clock() - began)
        return progress

    def close(self) -> None:
        """Ends all sessions with donors, which wait for the next learner then."""
        for donor in self._donors.values():
            donor.close()

    def _meet(self) -> None:
        """Begins sessions with donors that wait."""
        now = self._clock()
        for waiting in self._source.waiting():
            past = self._past.setdefault(waiting.peer, DonorPast())
            if waiting.peer not in self._donors and past.may_come(now):
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

    def _publish(self) -> None:
        if self._weights.version != self.own.version:
            self._weights.publish(self.own.version, self._policy.trainable())
            for donor in self._donors.values():
                donor.weights_changed()

    def _ready(self) -> list[Donor]:
        return [donor for donor in self._donors.values() if donor.is_ready]

    def _shared_out(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, shared: SharedTurns | None
    ) -> tuple[list[DonorPart], float]:
        """Returns the parts of donors, which are the last requests, since the first are the oldest; and the seconds
        after which every engine should have ended."""
        ready = [donor for donor in self._ready() if shared is None or donor.converses]
        if not ready or not requests:
            return [], 0.0
        work = [work_of(request) for request in requests]
        workers = [self._own_pace.worker(None), *(self._past[donor.peer].worker(sum(work)) for donor in ready)]
        groups = share_out(work, workers)
        parts: list[DonorPart] = []
        begin = groups[0]
        for donor, count in zip(ready, groups[1:], strict=True):
            if count == 0:
                self._past[donor.peer].pace.doubt()
                continue
            mine = requests[begin : begin + count]
            turns = None if shared is None else shared.part(range(begin, begin + count))
            parts.append(
                DonorPart.of(
                    donor,
                    mine,
                    begin,
                    sampling,
                    self._policy,
                    rows=self.own.rows,
                    version=self.own.version,
                    turns=turns,
                )
            )
            begin += count
        return parts, expected_seconds(work, groups, workers)

    def _own_part(
        self,
        requests: Sequence[GenerationRequest],
        parts: Sequence[DonorPart],
        sampling: Sampling,
        enough: Enough | None,
        shared: SharedTurns | None,
    ) -> list[GenerationProgress]:
        """Samples what stays here, and measures how long that takes."""
        own_enough: Enough | None = None
        if enough is not None:
            own_enough = lambda complete: enough(complete + sum(part.job.complete for part in parts))  # noqa: E731
        began = self._clock()
        turns = None if shared is None else shared.part(range(len(requests)))
        progress = self.own.advance(requests, sampling, own_enough, turns=turns)
        self._own_pace.observe(newly_ended(requests, progress), self._clock() - began)
        return progress

    def _taken(self, part: DonorPart, temperature: float) -> list[GenerationProgress]:
        """Returns what a donor reached, once that was checked; what its requests had before where it is not used."""
        job, past = part.job, self._past[part.donor.peer]
        if job.sampled is None:
            past.came_to_nothing()
        elif (fault := self._fault_of(part, temperature)) is not None:
            self._drop(part.donor, fault)
        else:
            reached = part.progress(self._policy.tokens.eos_ids)
            past.tokens += part.tokens
            past.ended(
                newly_ended(part.requests, reached),
                late=part.late,
                seconds=job.seconds,
                setup_seconds=job.setup_seconds,
            )
            return reached
        return [each.begun or GenerationProgress() for each in part.requests]

    def _fault_of(self, part: DonorPart, temperature: float) -> str | None:
        """Returns what a random sample of a donor's completions shows to be false, or None."""
        past, claims = self._past[part.donor.peer], part.claims()
        chosen = [claims[index] for index in chosen_to_check([sampled for _, sampled in claims], self._draws)]
        found = measure(self._policy, [(prefix, token_ids.tolist()) for prefix, (token_ids, _) in chosen], temperature)
        for (_, (_, claimed)), measured in zip(chosen, found, strict=True):
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
        shared: SharedTurns | None,
    ) -> list[GenerationProgress]:
        """Samples here what donors left over, unless there is enough."""
        left = [at for at, request in enumerate(requests) if not is_complete(request, progress[at])]
        complete = len(requests) - len(left)
        if not left or (enough is not None and enough(complete)):
            return progress
        again = [replace(each, begun=progress[at]) for at, each in ((at, requests[at]) for at in left)]
        seed = None if sampling.seed is None else random.Random(f"{sampling.seed}/left over").getrandbits(63)
        still_enough = None if enough is None else lambda more: enough(complete + more)
        turns = None if shared is None else shared.part(left)
        reached = self.own.advance(again, Sampling(sampling.temperature, seed), still_enough, turns=turns)
        for at, each in zip(left, reached, strict=True):
            progress[at] = each
        return progress

    def _tell(
        self,
        requests: Sequence[GenerationRequest],
        kept: int,
        parts: Sequence[DonorPart],
        progress: Sequence[GenerationProgress],
        seconds: float,
    ) -> None:
        """Reports each donor, and forgets the lost ones once they are reported."""
        tokens = new_tokens(requests, progress)
        by_peer = {part.donor.peer: part for part in parts}
        lost = {peer for peer, donor in self._donors.items() if donor.is_lost}
        shares = [
            _share_of(donor, self._past[peer], by_peer.get(peer), tokens, is_lost=peer in lost)
            for peer, donor in self._donors.items()
        ]
        self._report(
            DonorsShared(
                time_seconds=self._wall_clock(),
                groups=len(requests),
                own_groups=kept,
                tokens=tokens,
                seconds=seconds,
                donors=tuple(shares),
            )
        )
        self._had_donors = bool(shares)
        for peer in lost:
            del self._donors[peer]
            self._past[peer].lost(self._clock())


def _share_of(donor: Donor, past: DonorPast, part: DonorPart | None, new_tokens: int, *, is_lost: bool) -> DonorShare:
    states = (
        ("dropped", past.dropped),
        ("lost", is_lost),
        ("generated", part is not None),
        ("ready", donor.is_ready),
        ("preparing", True),
    )
    sampling_seconds = part.job.seconds if part is not None else 0.0
    return DonorShare(
        peer=donor.peer,
        name=donor.name,
        state=next(state for state, is_so in states if is_so),
        groups=part.end - part.begin if part is not None else 0,
        groups_done=part.groups_done if part is not None else 0,
        tokens=part.tokens if part is not None else 0,
        tokens_per_second=part.tokens / sampling_seconds if part is not None and sampling_seconds else None,
        share=part.tokens / new_tokens if part is not None and new_tokens else 0.0,
        setup_seconds=part.job.setup_seconds if part is not None else 0.0,
        tokens_total=past.tokens,
        because=donor.lost_because or "",
    )
