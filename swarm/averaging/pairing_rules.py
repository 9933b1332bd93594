"""What each of two nodes decides in order to average weights: pure functions, no I/O and no clock.

``reason_to_decline`` judges a proposal, ``next_proposal`` chooses the peer to propose to and the time to wait,
``says_have_last`` decides the order of the two confirmations, and ``after_event`` gives the progress of an exchange.
``swarm.averaging.pairing`` acts on them; ``protocol.streams.averaging_messages`` has the messages.

Each side decides an exchange for itself, by one rule: **it commits as soon as it holds the partner's weights and has
received the partner's ``have``**. A side that has not sent ``have`` may abandon at any moment, because the partner
cannot have committed without it. A side that has sent ``have``, has received none and has lost the stream is in doubt:
it asks again until it receives an answer, and abandons only when none comes for ``Terms.resolve_seconds``.
"""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from protocol.streams.averaging_messages import DeclineReason, Offer
from swarm.host import PeerId

MAX_DOUBLINGS = 4  # of ``Terms.pause_seconds``: bounds every pause
MIN_PAUSE_SECONDS = 0.02
ANSWER_SECONDS = 5.0
EXCHANGE_SECONDS = 600.0
RESOLVE_SECONDS = 60.0
HAVE_SECONDS = 5.0
START_SECONDS = 10.0
SLOWEST_BYTES_PER_SECOND = 250_000.0  # 2 Mbit/s: links below it do not average weights in time
SLOWEST_CHECK_BYTES_PER_SECOND = 20e6  # to hash and to decode weights, on a slow machine that is busy
UNDER_WAY_BYTES = 1 << 20  # at most, of a blob whose last chunk was sent: windows and buffers of the connection
# After the deadline of a search: an exchange accepted at its end, a doubt about its result, and last messages.
MAX_SECONDS_AFTER_DEADLINE = EXCHANGE_SECONDS + RESOLVE_SECONDS + 6 * ANSWER_SECONDS


# A peer reads from heartbeats that these will be declined, so that such a proposal counts against it.
UNLIKE = frozenset({DeclineReason.OTHER_FAMILY, DeclineReason.OTHER_LAYOUT})
FOR_NOW = frozenset({DeclineReason.NOT_NOW, DeclineReason.BUSY})  # who hears these goes on looking for a partner
TEMPORARY = FOR_NOW | {DeclineReason.CROSSED}  # the same offer may be accepted later


@dataclass(frozen=True, slots=True)
class Terms:
    """What a node agrees to, and how long it waits."""

    max_bytes: int  # of the partner's blob
    max_steps_apart: int  # outer steps between the two
    answer_seconds: float = ANSWER_SECONDS  # to connect, to open a stream, to answer a proposal: each
    exchange_seconds: float = EXCHANGE_SECONDS  # from accepting until both hold each other's weights, at most
    have_seconds: float = HAVE_SECONDS  # for the partner's ``have``, besides what its link and its check take
    resolve_seconds: float = RESOLVE_SECONDS  # for the answer of a partner, while we are in doubt
    pause_seconds: float = 0.5  # at most, after the first proposal that fails: idle, so that others may propose to us

    def seconds_for(self, size: int) -> float:
        """Returns how long an exchange of so many bytes, of both blobs, may take: what a slow link needs."""
        moving_seconds = START_SECONDS + size / SLOWEST_BYTES_PER_SECOND
        return min(self.exchange_seconds, moving_seconds + self.have_seconds_for(size))

    def have_seconds_for(self, size: int) -> float:
        """Returns how long a slow partner may take for ``have`` after the last chunk of our blob of so many bytes."""
        arriving_seconds = min(size, UNDER_WAY_BYTES) / SLOWEST_BYTES_PER_SECOND
        return self.have_seconds + arriving_seconds + size / SLOWEST_CHECK_BYTES_PER_SECOND


@dataclass(frozen=True, slots=True)
class PairingState:
    """What a node is doing when a proposal arrives."""

    own: PeerId
    offer: Offer | None = None
    engaged: bool = False  # in an exchange
    proposing_to: PeerId | None = None
    failed: frozenset[PeerId] = frozenset()  # partners of exchanges abandoned since the offer was made


def offer_mismatch(ours: Offer, theirs: Offer, terms: Terms) -> DeclineReason | None:
    """Why the weights of these two offers must not be averaged; None if they may be."""
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


def reason_to_decline(
    state: PairingState, proposer: PeerId, theirs: Offer, terms: Terms, *, is_candidate: bool = True
) -> DeclineReason | None:
    """Why to decline a proposal; None to accept it. ``is_candidate``: we would propose to this peer ourselves.

    Of two peers that propose to each other at once, the proposal of the smaller peer id is accepted, and the other one
    is not.
    """
    if state.offer is None:
        return DeclineReason.NOT_NOW
    mismatch = offer_mismatch(state.offer, theirs, terms)
    if mismatch is not None:
        return mismatch
    if not is_candidate:
        return DeclineReason.NOT_NOW
    if proposer in state.failed:
        return DeclineReason.FAILED_BEFORE
    if state.engaged or state.proposing_to not in (None, proposer):
        return DeclineReason.BUSY
    if state.proposing_to == proposer and state.own < proposer:
        return DeclineReason.CROSSED
    return None


@dataclass(frozen=True, slots=True)
class Search:
    """Our proposals since the offer was made. None of them led to an exchange."""

    proposals: Mapping[PeerId, int]  # to each peer
    excluded: frozenset[PeerId] = frozenset()  # peers that would decline the same offer again
    named: PeerId | None = None  # by the peer that was asked last: another one that looks for a partner
    idle_until_seconds: float = -math.inf


@dataclass(frozen=True, slots=True)
class NotPaired:
    """How a proposal of ours ended that led to no exchange."""

    why: str  # a ``DeclineReason``, or text
    named: PeerId | None = None  # by the peer that declined: another one that looks for a partner


@dataclass(frozen=True, slots=True)
class Seeker:
    """The latest proposal of a peer that we declined, though it may be accepted later."""

    family: bytes
    at_seconds: float


@dataclass(frozen=True, slots=True)
class Move:
    """Propose to ``peer``; without a peer, wait until ``until_seconds``."""

    peer: PeerId | None
    until_seconds: float
    because: str


def next_proposal(
    now_seconds: float,
    candidates: Sequence[PeerId],
    search: Search,
    terms: Terms,
    random: Random,
    *,
    seekers: Sequence[PeerId] = (),
    accepts: Callable[[PeerId], bool] = lambda peer: False,
) -> Move:
    """The peer to propose to once the pause after the last proposal is over.

    It is the last of ``seekers``: peers whose proposal to us we declined, and which therefore look for a partner.
    Without any, it is the one that the peer which declined last has named, if it is a candidate or ``accepts`` is true
    of it: its own proposal would run at once. Otherwise it is a random one of the candidates that received the fewest
    proposals.
    """
    if now_seconds < search.idle_until_seconds:
        return Move(None, search.idle_until_seconds, "pausing after a proposal that led to no exchange")
    open_to_us = [peer for peer in candidates if peer not in search.excluded]
    if not open_to_us:
        return Move(None, now_seconds + terms.pause_seconds, "no peer of the family is left to ask")
    seeking = [peer for peer in seekers if peer in open_to_us]
    if seeking:
        return Move(seeking[-1], now_seconds, "it proposed to us when we could not accept")
    named = search.named
    if named is not None and named not in search.excluded and (named in candidates or accepts(named)):
        return Move(named, now_seconds, "it proposed to the peer that we asked last")
    asked = {peer: search.proposals.get(peer, 0) for peer in open_to_us}
    fewest = min(asked.values())
    peer = random.choice([peer for peer in open_to_us if asked[peer] == fewest])
    return Move(peer, now_seconds, f"one of {len(open_to_us)} peers of the family")


def still_seeking(seekers: Mapping[PeerId, Seeker], family: bytes, now_seconds: float, terms: Terms) -> list[PeerId]:
    """The peers of a family whose proposals we declined within the last longest pause, the latest last.

    A peer that still looks for a partner proposes again within that time.
    """
    since_seconds = now_seconds - _longest_pause_seconds(terms)
    return [peer for peer, each in seekers.items() if each.family == family and each.at_seconds >= since_seconds]


def whom_to_name(proposer: PeerId, seeking: Sequence[PeerId], is_known: Callable[[PeerId], bool]) -> PeerId | None:
    """Returns whom to name to a proposer that is declined: the latest of ``seeking``, of those that ``is_known`` is
    true of if there are any. Two whom the same peer declined so find each other, without asking everybody."""
    others = [peer for peer in reversed(seeking) if peer != proposer]
    return next((peer for peer in others if is_known(peer)), others[0] if others else None)


def _longest_pause_seconds(terms: Terms) -> float:
    return terms.pause_seconds * 2.0**MAX_DOUBLINGS


def after_proposal(
    search: Search,
    peer: PeerId,
    ended: NotPaired,
    began_seconds: float,
    now_seconds: float,
    candidates: Sequence[PeerId],
    terms: Terms,
    random: Random,
) -> Search:
    """The search after a proposal to ``peer`` led to no exchange. ``candidates``: as when ``peer`` was chosen.

    A peer that is no candidate was named itself: it can name candidates alone, so that no chain of names leads us on.
    The pause is random, so that in a ring of proposals, where every peer declines, one of them is idle before the
    others. It begins with the time that the proposal took, which is about what others need to reach us, and doubles
    with each proposal to the same peer. A peer that did not answer may be asked again, after all the others.
    """
    proposals = Tally(search.proposals)
    proposals[peer] += 1
    lasting = ended.why in frozenset(DeclineReason) - TEMPORARY
    first_seconds = min(max(now_seconds - began_seconds, MIN_PAUSE_SECONDS), terms.pause_seconds)
    grown_seconds = min(first_seconds * 2.0 ** min(proposals[peer] - 1, 32), _longest_pause_seconds(terms))
    pause_seconds = grown_seconds * random.uniform(0.5, 1.5)
    excluded = search.excluded | {peer} if lasting else search.excluded
    named = ended.named if peer in candidates or ended.named in candidates else None
    return Search(proposals, excluded, named, now_seconds + pause_seconds)


def says_have_last(*, proposed: bool, is_known: bool) -> bool:
    """Whether we say ``have`` only after the partner's: in an exchange that a stranger proposed.

    It can then be abandoned at any moment without a doubt. A proposer never waits, so that no two wait for each other.
    """
    return not proposed and not is_known


class ExchangePhase(Enum):
    OPEN = "open"
    DOUBT = "doubt"  # we sent ``have`` and lost the stream: the partner may have committed
    COMMITTED = "committed"
    ABANDONED = "abandoned"


class ExchangeEvent(Enum):
    HELD = "held"  # the partner's weights are here, verified, and fit
    SENDING_HAVE = "sending_have"  # we are about to send ``have``
    HAVE_RECEIVED = "have_received"  # the partner holds our weights
    REFUSED = "refused"  # the partner abandoned, or its weights are unfit
    LOST = "lost"  # the stream broke, or the time for the exchange is over
    EXPIRED = "expired"  # the time to resolve a doubt is over too


@dataclass(frozen=True, slots=True)
class ExchangeProgress:
    """How far one side of one exchange has come. Decided once: no event leads out of COMMITTED or ABANDONED."""

    phase: ExchangePhase = ExchangePhase.OPEN
    holding: bool = False
    have_sent: bool = False  # or about to be
    have_received: bool = False

    @property
    def is_over(self) -> bool:
        return self.phase is not ExchangePhase.OPEN


def after_event(progress: ExchangeProgress, event: ExchangeEvent) -> ExchangeProgress:
    """The progress after an event. ``SENDING_HAVE`` comes after ``HELD``, and before the first byte is sent."""
    if progress.phase in (ExchangePhase.COMMITTED, ExchangePhase.ABANDONED):
        return progress
    match event:
        case ExchangeEvent.HELD:
            progress = replace(progress, holding=True)
        case ExchangeEvent.SENDING_HAVE:
            progress = replace(progress, have_sent=True)
        case ExchangeEvent.HAVE_RECEIVED:
            progress = replace(progress, have_received=True)
        case ExchangeEvent.LOST:
            return replace(progress, phase=ExchangePhase.DOUBT if progress.have_sent else ExchangePhase.ABANDONED)
        case ExchangeEvent.REFUSED | ExchangeEvent.EXPIRED:
            return replace(progress, phase=ExchangePhase.ABANDONED)
    committed = progress.holding and progress.have_received
    return replace(progress, phase=ExchangePhase.COMMITTED) if committed else progress
