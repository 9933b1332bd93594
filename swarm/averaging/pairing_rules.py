"""What two nodes say to each other to average weights, and what each decides: pure functions, no I/O and no clock.

``answer`` says whether to accept a proposal, ``next_move`` whom to propose to and when to keep still, ``advance`` how
far an exchange has come. ``swarm.averaging.pairing`` acts on them.

An exchange is decided by one rule, on either side alone: **committed as soon as we hold the partner's weights and heard
that it holds ours**. Who has not yet said that it holds the partner's may abandon at will, for nobody can have
committed on its word. Who has said so and heard nothing is in doubt: it asks again until told, and abandons only when
that fails for the whole of ``Terms.resolve_seconds``.
"""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from random import Random
from typing import Annotated

from msgspec import Meta, Struct

from protocol import limits
from protocol.messages import Counter, Hash16, Hash32, Name
from swarm.host import PeerId

MAX_DOUBLINGS = 4  # of ``Terms.pause_seconds``: no pause is longer
MIN_PAUSE_SECONDS = 0.02
ANSWER_SECONDS = 5.0
EXCHANGE_SECONDS = 600.0
RESOLVE_SECONDS = 60.0
# Beyond the deadline of a search: an exchange accepted at its end, doubt about how it ended, and last words.
MAX_SECONDS_AFTER_DEADLINE = EXCHANGE_SECONDS + RESOLVE_SECONDS + 6 * ANSWER_SECONDS


class Offer(Struct, frozen=True, array_like=True):
    """The weights that one side has ready, as a blob that lies in its store until the exchange is over."""

    family: Hash16
    layout: Hash16  # digest of names and shapes, ``TensorLayout.digest``
    encoding: Name  # how the blob holds them
    step: Counter  # outer steps taken
    blob: Hash32
    size: Annotated[int, Meta(ge=1, le=limits.BLOB_BYTES)]  # bytes


class Propose(Struct, frozen=True, array_like=True, tag="propose"):
    exchange: Hash16  # drawn at random by the proposer
    offer: Offer


class Accept(Struct, frozen=True, array_like=True, tag="accept"):
    offer: Offer


class Decline(Struct, frozen=True, array_like=True, tag="decline"):
    reason: Name  # a ``DeclineReason``, or one that a later minor version adds


class Have(Struct, frozen=True, array_like=True, tag="have"):
    """We hold your weights, verified and fit to average with. Said again, it asks: and you?"""

    exchange: Hash16


class Abandon(Struct, frozen=True, array_like=True, tag="abandon"):
    exchange: Hash16
    because: Annotated[str, Meta(max_length=limits.REASON_BYTES)]


AveragingMessage = Propose | Accept | Decline | Have | Abandon


class DeclineReason(StrEnum):
    """Why a proposal is declined."""

    NOT_NOW = "not_now"  # nothing is on offer at the moment
    BUSY = "busy"  # exchanging with, or proposing to, somebody else
    CROSSED = "crossed"  # ours to the same peer is on its way, and it goes before
    FAILED_BEFORE = "failed_before"  # an exchange with this peer has just come to nothing
    OTHER_FAMILY = "other_family"
    OTHER_LAYOUT = "other_layout"
    OTHER_ENCODING = "other_encoding"
    STEPS_APART = "steps_apart"  # one of the two is too far behind
    TOO_LARGE = "too_large"


UNLIKE = frozenset({DeclineReason.OTHER_FAMILY, DeclineReason.OTHER_LAYOUT})  # its heartbeat tells who is alike
PASSING = frozenset(
    {DeclineReason.NOT_NOW, DeclineReason.BUSY, DeclineReason.CROSSED}
)  # worth asking again while the same offer stands


@dataclass(frozen=True, slots=True)
class Terms:
    """What a node agrees to, and how long it waits."""

    max_bytes: int  # of the partner's blob
    max_steps_apart: int  # outer steps between the two
    answer_seconds: float = ANSWER_SECONDS  # to connect, to open a stream, to answer a proposal: each
    exchange_seconds: float = EXCHANGE_SECONDS  # from accepting until both hold what they came for
    resolve_seconds: float = RESOLVE_SECONDS  # to hear from a partner that left us in doubt
    pause_seconds: float = 0.5  # idle, so that others may propose to us, after the first proposal in vain: at most


@dataclass(frozen=True, slots=True)
class PairingState:
    """What a node is doing while it answers proposals."""

    own: PeerId
    offer: Offer | None = None
    engaged: bool = False  # in an exchange
    proposing_to: PeerId | None = None
    failed: frozenset[PeerId] = frozenset()  # partners of exchanges abandoned since the offer was made


def unfit_because(ours: Offer, theirs: Offer, terms: Terms) -> DeclineReason | None:
    """Why these two must not be averaged, or None."""
    if theirs.family != ours.family:
        return DeclineReason.OTHER_FAMILY
    if theirs.layout != ours.layout:
        return DeclineReason.OTHER_LAYOUT
    if theirs.encoding != ours.encoding:
        return DeclineReason.OTHER_ENCODING
    if abs(theirs.step - ours.step) > terms.max_steps_apart:
        return DeclineReason.STEPS_APART
    if theirs.size > terms.max_bytes:
        return DeclineReason.TOO_LARGE
    return None


def answer(standing: PairingState, proposer: PeerId, theirs: Offer, terms: Terms) -> DeclineReason | None:
    """Why to decline a proposal; None to accept it.

    Of two that propose to each other at once, the proposal of the smaller peer id goes before: exactly one is accepted.
    """
    if standing.offer is None:
        return DeclineReason.NOT_NOW
    unfit = unfit_because(standing.offer, theirs, terms)
    if unfit is not None:
        return unfit
    if proposer in standing.failed:
        return DeclineReason.FAILED_BEFORE
    if standing.engaged or standing.proposing_to not in (None, proposer):
        return DeclineReason.BUSY
    if standing.proposing_to == proposer and standing.own < proposer:
        return DeclineReason.CROSSED
    return None


@dataclass(frozen=True, slots=True)
class Search:
    """What came of our proposals since the offer was made."""

    tried: Mapping[PeerId, int]  # proposals to each peer
    excluded: frozenset[PeerId] = frozenset()  # asking again would be in vain
    idle_until_seconds: float = -math.inf


@dataclass(frozen=True, slots=True)
class Move:
    """Propose to ``peer``; or, without one, keep still until ``until_seconds``."""

    peer: PeerId | None
    until_seconds: float
    because: str


def next_move(
    now_seconds: float,
    candidates: Sequence[PeerId],
    search: Search,
    terms: Terms,
    random: Random,
    *,
    seekers: Sequence[PeerId] = (),
) -> Move:
    """Whom to propose to once the pause after the last proposal is over.

    One of ``seekers``, who proposed to us in vain, and so are known to look for a partner; without any, a random one of
    those candidates that were asked least often.
    """
    if now_seconds < search.idle_until_seconds:
        return Move(None, search.idle_until_seconds, "pausing after a proposal that came to nothing")
    open_to_us = [peer for peer in candidates if peer not in search.excluded]
    if not open_to_us:
        return Move(None, now_seconds + terms.pause_seconds, "no peer of the family is left to ask")
    seeking = [peer for peer in seekers if peer in open_to_us]
    if seeking:
        return Move(seeking[-1], now_seconds, "it proposed to us when we could not accept")
    fewest = min(search.tried.get(peer, 0) for peer in open_to_us)
    peer = random.choice([peer for peer in open_to_us if search.tried.get(peer, 0) == fewest])
    return Move(peer, now_seconds, f"one of {len(open_to_us)} peers of the family")


def still_seeking(proposed_at: Mapping[PeerId, float], now_seconds: float, terms: Terms) -> list[PeerId]:
    """Who proposed to us in vain lately, the latest last: within the longest pause before somebody asks again."""
    return [peer for peer, at_seconds in proposed_at.items() if now_seconds - at_seconds <= _longest_seconds(terms)]


def _longest_seconds(terms: Terms) -> float:
    return terms.pause_seconds * 2.0**MAX_DOUBLINGS


def after_proposal(
    search: Search, peer: PeerId, why: str, began_seconds: float, now_seconds: float, terms: Terms, random: Random
) -> Search:
    """The search after a proposal to ``peer`` came to nothing for ``why``, a ``DeclineReason`` or a failure in words.

    The pause is random: in a ring of proposals everybody declines, and somebody is idle first. It begins with what a
    proposal takes on these links, which is how long others need to reach us, and doubles each time that the same peer
    is asked. A peer that did not answer may be asked again, after all the others.
    """
    tried = Tally(search.tried)
    tried[peer] += 1
    lasting = why in frozenset(DeclineReason) - PASSING
    first_seconds = min(max(now_seconds - began_seconds, MIN_PAUSE_SECONDS), terms.pause_seconds)
    grown_seconds = min(first_seconds * 2.0 ** min(tried[peer] - 1, 32), _longest_seconds(terms))
    pause_seconds = grown_seconds * random.uniform(0.5, 1.5)
    excluded = search.excluded | {peer} if lasting else search.excluded
    return Search(tried, excluded, now_seconds + pause_seconds)


class ExchangePhase(Enum):
    OPEN = "open"
    DOUBT = "doubt"  # we said that we hold theirs, cannot hear the partner, and it may have committed
    COMMITTED = "committed"
    ABANDONED = "abandoned"


class ExchangeEvent(Enum):
    HELD = "held"  # their weights are here, verified, and fit
    TOLD = "told"  # we are about to say so
    HEARD = "heard"  # they said that they hold ours
    REFUSED = "refused"  # they abandoned, or their weights are unfit
    LOST = "lost"  # the stream broke, or the time for the exchange is over
    EXPIRED = "expired"  # so is the time to clear up a doubt


@dataclass(frozen=True, slots=True)
class ExchangeProgress:
    """How far one side of one exchange has come. Decided once: no event leads out of COMMITTED or ABANDONED."""

    phase: ExchangePhase = ExchangePhase.OPEN
    holding: bool = False
    told: bool = False
    heard: bool = False


def advance(progress: ExchangeProgress, event: ExchangeEvent) -> ExchangeProgress:
    """The progress after an event. ``TOLD`` comes after ``HELD``, and before the first byte of it leaves."""
    if progress.phase in (ExchangePhase.COMMITTED, ExchangePhase.ABANDONED):
        return progress
    match event:
        case ExchangeEvent.HELD:
            progress = replace(progress, holding=True)
        case ExchangeEvent.TOLD:
            progress = replace(progress, told=True)
        case ExchangeEvent.HEARD:
            progress = replace(progress, heard=True)
        case ExchangeEvent.LOST:
            return replace(progress, phase=ExchangePhase.DOUBT if progress.told else ExchangePhase.ABANDONED)
        case ExchangeEvent.REFUSED | ExchangeEvent.EXPIRED:
            return replace(progress, phase=ExchangePhase.ABANDONED)
    return replace(progress, phase=ExchangePhase.COMMITTED) if progress.holding and progress.heard else progress
