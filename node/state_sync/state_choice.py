"""Chooses which announced state to start from: the best measured by its holders, of those available and trusted.

    success(claim)  = mean over our tasks of s_t · n_t / (n_t + 20), n_t at most 1000; a task not named counts 0
    promise(state)  = the highest success · reputation of its holders; a holder without measurements adds trust alone
    trust(state)    = 1 − Π (1 − reputation) over the peers that announce exactly the same weights

The best promise wins; among states within its sampling error, the one with most trust. A claim may be false. It only
decides what is tried first: weights are verified by hash, and measured here before they are kept
(``state_verdict.py``), and a peer whose claim does not hold loses reputation. The highest claim counts, not the mean:
a claim that is too low cannot be refuted, and with a mean it would hide the state of another.

Everything here is a pure function of its arguments and returns its reason. No text from peers enters a reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from protocol.messages import StateAdvert, StateBlob, TaskSuccess
from swarm.api import SeenState, Wanted

MIN_REPUTATION: Final = 0.35  # an unknown peer has ½; one proven fault lowers it to 0.17, two stalls to 0.33
FRESH_SECONDS: Final = 200.0  # an announcement is repeated every minute
PRIOR_SAMPLES: Final = 20.0  # they draw a claim towards 0
MAX_SAMPLES: Final = 1000  # more samples give a claim no more weight
SETTLE_SECONDS: Final = 6.0  # to wait for others after the first announcement: a little over one heartbeat

Chain = tuple[StateBlob, ...]  # an anchor and its diffs


@dataclass(frozen=True, slots=True)
class StateRequirements:
    """What a state must match to be usable here."""

    layout: bytes  # digest
    tasks: tuple[str, ...]
    anchor_bytes: int  # of any anchor of this layout
    room_bytes: int  # the most that fetched blobs may take
    success: float | None = None  # of our own weights, measured as ``claimed_success`` does; None: they are untrained


class StateUnfit(StrEnum):
    """Why an announced state is not considered; the values are shown to users."""

    OTHER_LAYOUT = "another layout"
    REPUTATION = "reputation too low"
    OLD = "announced too long ago"
    FAILED = "failed before"
    ANCHOR_SIZE = "an anchor of impossible size"
    TOO_LARGE = "too large for swarm.store_bytes"


@dataclass(frozen=True, slots=True)
class AnnouncedState:
    """Announced weights, and the peers that announce them."""

    advert: StateAdvert
    announcers: tuple[str, ...]  # peers that announce it with these very blobs, by reputation
    holders: tuple[str, ...]  # peers that announce these weights by any chain, by reputation
    claims: Mapping[str, float]  # success on our tasks, by each holder that measured these weights
    success: float | None  # the claim with the best promise; None: no holder measured it
    promise: float  # ``success`` times the reputation of the peer that claims it
    error: float  # standard error of ``success``, from its samples
    trust: float
    wanted: tuple[Wanted, ...]  # its blobs in the order of use, each with all peers that have it

    @property
    def size_bytes(self) -> int:
        return sum(each.size for each in self.wanted)


@dataclass(frozen=True, slots=True)
class StateChoice:
    chosen: AnnouncedState | None
    because: str
    rejected: Counter[StateUnfit]  # announcements not considered, by reason


def claimed_success(claims: Sequence[TaskSuccess], tasks: Sequence[str]) -> float:
    """Returns the mean success on ``tasks``; a claim with few samples is drawn towards 0."""
    by_task = {claim.task: claim for claim in claims}
    total = 0.0
    for task in tasks:
        claim = by_task.get(task)
        if claim is not None:
            samples = min(claim.samples, MAX_SAMPLES)
            total += claim.success * samples / (samples + PRIOR_SAMPLES)
    return total / len(tasks) if tasks else 0.0


def choose_state(
    now_seconds: float, seen: Sequence[SeenState], ours: StateRequirements, failed: Collection[Chain]
) -> StateChoice:
    """Returns the state to start from, or None, and why. ``failed`` holds the chains that failed before."""
    rejected: Counter[StateUnfit] = Counter()
    usable: list[SeenState] = []
    for each in seen:
        reason = _unfit_because(now_seconds, each, ours, failed)
        if reason is None:
            usable.append(each)
        else:
            rejected[reason] += 1
    states = _states(usable, ours)
    own = ours.success
    better = [s for s in states if own is None or (s.success is not None and s.success - s.error > own)]
    if not better:
        return StateChoice(None, _why_none(seen, states, ours, rejected), rejected)
    best = max(better, key=_rank)
    if best.success is not None:
        least = best.promise - best.error
        alike = [s for s in better if s.success is not None and s.promise >= least]
        best = max(alike, key=lambda s: (s.trust, len(s.announcers), _rank(s)))
    return StateChoice(best, _why_this(best, len(states)), rejected)


def _unfit_because(
    now_seconds: float, seen: SeenState, ours: StateRequirements, failed: Collection[Chain]
) -> StateUnfit | None:
    advert = seen.advert
    if advert.layout != ours.layout:
        return StateUnfit.OTHER_LAYOUT
    if seen.reputation < MIN_REPUTATION:
        return StateUnfit.REPUTATION
    if now_seconds - seen.heard_at_seconds > FRESH_SECONDS:
        return StateUnfit.OLD
    if advert.blobs in failed:
        return StateUnfit.FAILED
    if advert.anchor.size != ours.anchor_bytes:
        return StateUnfit.ANCHOR_SIZE
    if sum(each.size for each in advert.blobs) > ours.room_bytes:
        return StateUnfit.TOO_LARGE
    return None


def _states(usable: Sequence[SeenState], ours: StateRequirements) -> list[AnnouncedState]:
    """Returns one state for each chain, so that a junk chain to the same weights does not spoil a sound one."""
    by_chain: dict[Chain, list[SeenState]] = {}
    by_reputation = sorted(usable, key=lambda s: -s.reputation)
    for each in by_reputation:
        by_chain.setdefault(each.advert.blobs, []).append(each)
    return [_state(announced, by_reputation, ours) for announced in by_chain.values()]


def _state(
    announced: Sequence[SeenState], by_reputation: Sequence[SeenState], ours: StateRequirements
) -> AnnouncedState:
    advert = announced[0].advert
    held = [s for s in by_reputation if s.advert.target == advert.target]
    measured = [s for s in held if s.advert.tasks]
    claims = {s.peer: claimed_success(s.advert.tasks, ours.tasks) for s in measured}
    success, promise, error = None, 0.0, 0.0
    if measured:
        best = max(measured, key=lambda s: (claims[s.peer] * s.reputation, s.peer))
        success, promise = claims[best.peer], claims[best.peer] * best.reputation
        samples = sum(min(t.samples, MAX_SAMPLES) for t in best.advert.tasks if t.task in ours.tasks)
        error = math.sqrt(success * (1.0 - success) / max(1, samples))
    wanted = tuple(
        Wanted(blob.blob, blob.size, tuple(s.peer for s in by_reputation if blob in s.advert.blobs))
        for blob in advert.blobs
    )
    trust = 1.0 - math.prod(1.0 - s.reputation for s in held)
    announcers, holders = (tuple(s.peer for s in which) for which in (announced, held))
    return AnnouncedState(advert, announcers, holders, claims, success, promise, error, trust, wanted)


def _rank(state: AnnouncedState) -> tuple[float, float, bytes]:
    return -1.0 if state.success is None else state.promise, state.trust, state.advert.target


def _why_this(best: AnnouncedState, states: int) -> str:
    sources = len({peer for each in best.wanted for peer in each.peers})
    holders = f"{sources} peer{'' if sources == 1 else 's'}"
    measured = "not measured" if best.success is None else f"success {best.success:.3f} claimed on our tasks"
    return f"the best of {states} announced: policy version {best.advert.policy_version}, {measured}, held by {holders}"


def _why_none(
    seen: Sequence[SeenState], states: Sequence[AnnouncedState], ours: StateRequirements, rejected: Counter[StateUnfit]
) -> str:
    if not seen:
        return "no peer of our family announces a state"
    if states:
        best = max((s.success for s in states if s.success is not None), default=None)
        said = "none was measured" if best is None else f"the best has {best:.3f}"
        return f"no announced state is better than our own checkpoint, success {ours.success or 0.0:.3f}: {said}"
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(rejected.items()))
    return f"of {len(seen)} announced states none can be used: {reasons}"


@dataclass(frozen=True, slots=True)
class SearchMove:
    """What to do next: take ``state``, wait and look again, or stop looking."""

    then: Literal["take", "wait", "stop"]
    because: str
    state: AnnouncedState | None = None


def next_search_move(
    waited_seconds: float,
    heard_seconds: float | None,
    choice: StateChoice,
    *,
    patience_seconds: float,
    family_peers: int,
) -> SearchMove:
    """Returns what to do after ``waited_seconds`` of looking, ``heard_seconds`` after the first announcement.

    An early announcement is not taken at once: other peers may announce better states in the next seconds.
    """
    if choice.chosen is not None and heard_seconds is not None:
        if heard_seconds >= SETTLE_SECONDS or waited_seconds >= patience_seconds:
            return SearchMove("take", choice.because, choice.chosen)
        return SearchMove("wait", "a state is announced; waiting for others")
    there = f"; {family_peers} of our family {'is' if family_peers == 1 else 'are'} there" if family_peers else ""
    if waited_seconds >= patience_seconds:
        return SearchMove("stop", f"{choice.because} (waited {waited_seconds:.0f} s{there})")
    return SearchMove("wait", f"{choice.because}{there}")
