"""Which announced state to start from: the best by what its holders measured, of those that can be had and trusted.

    success(claim)  = mean over our tasks of s_t · n_t / (n_t + 20), n_t at most 1000; a task not named counts 0
    success(state)  = mean of its holders' claims; a holder that measured nothing speaks for the state, not for a value
    trust(state)    = 1 − Π (1 − reputation) over the peers that announce the very same weights

The best success wins; of states that lie within its sampling error, the one with most trust, then the longest trained.
A claim may be a lie like any other, so that a state is only taken from a peer whose past does not speak against it, and
what it leads to is verified by hash before it is used. That the success is real, the first rounds show.

Everything here is a pure function of what is passed in and returns its reason. Text from peers does not get into it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.messages import StateAdvert, StateBlob, TaskSuccess
from swarm.api import SeenState, Wanted

MIN_REPUTATION: Final = 0.35  # a stranger has ½; a proven fault makes it 0.17, two stalls 0.33
FRESH_SECONDS: Final = 200.0  # an announcement is repeated every minute
PRIOR_SAMPLES: Final = 20.0  # with which a claim is drawn towards 0
MAX_SAMPLES: Final = 1000  # a claim weighs no more, whatever it says
SETTLE_SECONDS: Final = 6.0  # from the first announcement, for the others to come: a heartbeat and a bit more

Chain = tuple[StateBlob, ...]  # an anchor and its diffs


@dataclass(frozen=True, slots=True)
class Ours:
    """What a state must suit."""

    layout: bytes  # digest
    tasks: tuple[str, ...]
    anchor_bytes: int  # of any anchor of this layout
    room_bytes: int  # that fetched blobs may take
    success: float | None = None  # of our own weights, measured as ``claimed_success`` does; None: they are untrained


@dataclass(frozen=True, slots=True)
class AnnouncedState:
    """Announced weights, and who says so."""

    advert: StateAdvert
    announcers: tuple[str, ...]  # peers that announce it with these very blobs, by reputation
    holders: tuple[str, ...]  # peers that announce these weights, by whatever chain, by reputation
    success: float | None  # None: nobody says that it measured it
    error: float  # standard error of ``success`` from the samples that it rests on
    trust: float
    wanted: tuple[Wanted, ...]  # its blobs in the order of use, each with all who have it

    @property
    def size_bytes(self) -> int:
        return sum(each.size for each in self.wanted)


@dataclass(frozen=True, slots=True)
class StateChoice:
    chosen: AnnouncedState | None
    because: str
    rejected: Counter[str]  # announcements not considered, by reason


def claimed_success(claims: Sequence[TaskSuccess], tasks: Sequence[str]) -> float:
    """Mean success on ``tasks``, few samples drawn towards 0."""
    by_task = {claim.task: claim for claim in claims}
    total = 0.0
    for task in tasks:
        claim = by_task.get(task)
        if claim is not None:
            samples = min(claim.samples, MAX_SAMPLES)
            total += claim.success * samples / (samples + PRIOR_SAMPLES)
    return total / len(tasks) if tasks else 0.0


def choose(now_seconds: float, seen: Sequence[SeenState], ours: Ours, failed: Collection[Chain]) -> StateChoice:
    """``failed`` holds the chains that were tried in vain."""
    rejected: Counter[str] = Counter()
    usable: list[SeenState] = []
    for each in seen:
        reason = _unfit_because(now_seconds, each, ours, failed)
        if reason is None:
            usable.append(each)
        else:
            rejected[reason] += 1
    states = _states(usable, ours)
    better = [s for s in states if ours.success is None or _exceeds(s, ours.success)]
    if not better:
        return StateChoice(None, _why_none(seen, states, ours, rejected), rejected)
    best = max(better, key=_rank)
    if best.success is not None:
        least = best.success - best.error
        alike = [s for s in better if s.success is not None and s.success >= least]
        best = max(alike, key=lambda s: (s.trust, s.advert.policy_version, len(s.announcers), _rank(s)))
    return StateChoice(best, _why_this(best, len(states)), rejected)


def _unfit_because(now_seconds: float, seen: SeenState, ours: Ours, failed: Collection[Chain]) -> str | None:
    advert = seen.advert
    if advert.layout != ours.layout:
        return "another layout"
    if seen.reputation < MIN_REPUTATION:
        return "reputation too low"
    if now_seconds - seen.heard_at_seconds > FRESH_SECONDS:
        return "announced too long ago"
    if advert.blobs in failed:
        return "tried in vain"
    if advert.anchor.size != ours.anchor_bytes:
        return "an anchor of impossible size"
    if sum(each.size for each in advert.blobs) > ours.room_bytes:
        return "too large for swarm.store_bytes"
    return None


def _states(usable: Sequence[SeenState], ours: Ours) -> list[AnnouncedState]:
    """One for each chain: somebody who announces the same weights by a chain of junk spoils nobody else's."""
    by_chain: dict[Chain, list[SeenState]] = {}
    by_reputation = sorted(usable, key=lambda s: -s.reputation)
    for each in by_reputation:
        by_chain.setdefault(each.advert.blobs, []).append(each)
    return [_state(announced, by_reputation, ours) for announced in by_chain.values()]


def _state(announced: Sequence[SeenState], by_reputation: Sequence[SeenState], ours: Ours) -> AnnouncedState:
    advert = announced[0].advert
    claims = [s for s in by_reputation if s.advert.target == advert.target]
    measured = [c.advert.tasks for c in claims if c.advert.tasks]
    success = error = None
    if measured:
        success = sum(claimed_success(tasks, ours.tasks) for tasks in measured) / len(measured)
        samples = sum(min(t.samples, MAX_SAMPLES) for tasks in measured for t in tasks if t.task in ours.tasks)
        error = math.sqrt(success * (1.0 - success) / max(1, samples))
    wanted = tuple(
        Wanted(blob.blob, blob.size, tuple(s.peer for s in by_reputation if blob in s.advert.blobs))
        for blob in advert.blobs
    )
    trust = 1.0 - math.prod(1.0 - c.reputation for c in claims)
    announcers, holders = (tuple(s.peer for s in which) for which in (announced, claims))
    return AnnouncedState(advert, announcers, holders, success, error or 0.0, trust, wanted)


def _exceeds(state: AnnouncedState, success: float) -> bool:
    return state.success is not None and state.success - state.error > success


def _rank(state: AnnouncedState) -> tuple[float, float, int, bytes]:
    measured = -1.0 if state.success is None else state.success
    return measured, state.trust, state.advert.policy_version, state.advert.target


def _why_this(best: AnnouncedState, states: int) -> str:
    sources = len({peer for each in best.wanted for peer in each.peers})
    holders = f"{sources} peer{'' if sources == 1 else 's'}"
    measured = "not measured" if best.success is None else f"success {best.success:.3f} on our tasks"
    return f"the best of {states} announced: policy version {best.advert.policy_version}, {measured}, held by {holders}"


def _why_none(seen: Sequence[SeenState], states: Sequence[AnnouncedState], ours: Ours, rejected: Counter[str]) -> str:
    if not seen:
        return "no peer of our family announces a state"
    if states:
        best = max((s.success for s in states if s.success is not None), default=None)
        said = "none was measured" if best is None else f"the best has {best:.3f}"
        return f"no announced state is better than our own checkpoint, success {ours.success or 0.0:.3f}: {said}"
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(rejected.items()))
    return f"of {len(seen)} announced states none can be used: {reasons}"


@dataclass(frozen=True, slots=True)
class Wait:
    because: str


@dataclass(frozen=True, slots=True)
class Take:
    state: AnnouncedState
    because: str


@dataclass(frozen=True, slots=True)
class StopLooking:
    because: str


def next_move(
    waited_seconds: float,
    heard_seconds: float | None,
    choice: StateChoice,
    *,
    patience_seconds: float,
    family_peers: int,
) -> Wait | Take | StopLooking:
    """What to do after ``waited_seconds`` of looking, the first announcement having been heard ``heard_seconds`` ago.

    One that comes early is not taken at once: others of the family may announce better ones in the next seconds.
    """
    if choice.chosen is not None and heard_seconds is not None:
        if heard_seconds >= SETTLE_SECONDS or waited_seconds >= patience_seconds:
            return Take(choice.chosen, choice.because)
        return Wait("a state is announced; hearing others")
    there = f"; {family_peers} of our family {'is' if family_peers == 1 else 'are'} there" if family_peers else ""
    if waited_seconds >= patience_seconds:
        return StopLooking(f"{choice.because} (waited {waited_seconds:.0f} s{there})")
    return Wait(f"{choice.because}{there}")
