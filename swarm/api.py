"""Requests and replies between the swarm process and its clients on the Unix socket: structs in MessagePack frames.

Both ends are ours and of one version; frames are bounded nevertheless. Blobs pass as files in the content store, small
ones that were fetched within the reply.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from protocol.messages import GroupAdvert, Hash16, Hash32, Heartbeat, StateAdvert
from protocol.streams.averaging_messages import Offer
from protocol.streams.lend_messages import LendTerms
from protocol.streams.letter_messages import HoldLetter, LetterReceipt
from swarm.averaging.norm_history import FamilyPast

MAX_FRAME_BYTES = 16 * 1024 * 1024
MAX_INLINE_BYTES = 8 * 1024 * 1024  # of contents in one reply; further blobs are handed over by path


class Judgement(StrEnum):
    """The result of the learner's check of what a peer sent."""

    USED = "used"  # every claim held, and the group was used for training
    UNUSED = "unused"  # every claim held; not used for training, for a reason of our own
    FALSE_REWARD = "false_reward"  # a recomputed reward differs from the claim
    MALFORMED = "malformed"  # undecodable, inconsistent with its advert, or impossible numbers
    UNFIT_WEIGHTS = "unfit_weights"  # an announced state with other weights than named, or impossible numbers
    FALSE_SUCCESS = "false_success"  # an announced state whose weights are much worse than the sender claims
    HARMFUL_WEIGHTS = "harmful_weights"  # after averaging with them our success fell


class ExchangeStatus(Struct, frozen=True):
    """One exchange of weights that was decided."""

    partner: str
    at_seconds: float  # Unix time by our clock
    seconds: float
    committed: bool
    because: str  # "committed", or why not, in words
    sent_bytes: int  # of our blob, once the partner confirmed that it holds it
    received_bytes: int  # of the partner's blob, once it was here
    encoding: str = ""  # of both blobs


class AveragingStatus(Struct, frozen=True):
    """Exchanges of weights since the swarm process started. If no learner averages, every field is empty."""

    running: bool = False
    exchanges: dict[str, int] = {}  # decided, by ``swarm.averaging.weight_averaging.ExchangeOutcome``
    last: ExchangeStatus | None = None


class PeerStatus(Struct, frozen=True):
    """One peer as this node sees it. Strings received from the peer are to be shown escaped."""

    peer: str
    connected: bool
    addresses: tuple[str, ...]
    round_trip_seconds: float | None
    heartbeat: Heartbeat | None
    heartbeat_age_seconds: float | None  # None: none came, or the peer has said goodbye since
    groups_announced: int  # by the peer, as heard here
    groups_used: int
    groups_rejected: int
    reputation: float  # 0 banned, ½ unknown, toward 1 with every claim that held
    banned_because: str | None
    clock_offset_seconds: float | None = None  # the peer's clock at its last heartbeat minus ours at the arrival
    exchanges_committed: int = 0  # of weights
    exchanges_abandoned: int = 0
    last_exchange: ExchangeStatus | None = None
    groups_fetched: int = 0  # times that the peer fetched one of our groups
    conduct: dict[str, int] = {}  # what the peer did, counted by ``swarm.peers.reputation.Conduct``
    relayed: bool = False  # connected through a relay only


class ReachStatus(Struct, frozen=True):
    """From where peers can dial this node, and what is relayed."""

    reach: str = "unknown"  # ``swarm.peers.reachability.Reach``
    in_words: str = ""  # the same, and what would help
    is_out_of_reach: bool = False  # most peers that tried, one at least, failed; or that is unknown, and it has relays
    relays: tuple[str, ...] = ()  # peers through which this node is reached
    relayed_peers: tuple[str, ...] = ()  # connected through a relay only
    serves_as_relay: bool = False
    reservations: int = 0  # places that others have here
    circuits: int = 0  # connections of others that run through here
    relayed_bytes: int = 0  # for others, since start


class LendingStatus(Struct, frozen=True):
    """Of a donor: the owner to which it lends, and whether it does now."""

    owner: str  # peer id
    model: str = ""  # that the owner asked for; empty while it does not lend
    waits_because: str = ""  # why it does not lend now
    sessions: int = 0  # since start
    layers: bool = False  # it holds some of the model's layers, in place of an engine


class SwarmStatus(Struct, frozen=True, tag="status"):
    peer: str
    swarm: str  # name
    swarm_id: str  # hex
    addresses: tuple[str, ...]
    uptime_seconds: float
    connected_peers: int
    alone_because: str | None  # None while a peer is connected; otherwise what was tried, and when the node tries next
    sent_bytes: int
    received_bytes: int
    store_bytes: int
    accepted: dict[str, int]  # announcements by kind
    rejected: dict[str, int]  # by reason
    groups_announced: int = 0  # own ones, of those that the learner offers, while a peer was connected
    groups_fetched: int = 0  # own ones that a peer has fetched, each counted once
    adverts_held_back: int = 0  # of our own groups, because the whole swarm announces enough: ``announcements.pacing``
    averaging: AveragingStatus = AveragingStatus()
    private: bool = False  # a private cluster, which is joined with an invite
    paused: bool = False  # heartbeats say so
    reach: ReachStatus = ReachStatus()
    has_learner: bool = True  # False: ``starling relay``, a peer that only introduces and relays, or a donor
    lending: LendingStatus | None = None  # of ``starling lend``
    other_swarm: str | None = None  # of a peer met in the last ten minutes that is in another swarm: which, and why


class SeenGroup(Struct, frozen=True):
    """One advertised group, as the pool of the swarm process keeps it for the learner."""

    cursor: int  # rises by one with each group seen; pass the last one to get newer groups
    peer: str
    seen_at_seconds: float  # Unix time by our clock
    family: bytes
    tokenizer: bytes
    policy_version: int
    advert: GroupAdvert


class SeenState(Struct, frozen=True):
    """A state that a peer announces, and the peer's reputation."""

    peer: str
    heard_at_seconds: float  # Unix time by our clock
    reputation: float
    advert: StateAdvert


class Wanted(Struct, frozen=True):
    blob: bytes
    size: int
    peers: tuple[str, ...]  # that are known to have it, best first


class Fetched(Struct, frozen=True):
    """The outcome for one wanted blob: its content if it is small, a path in the content store, or the reason why it
    is not here."""

    blob: bytes
    path: str | None
    reason: str | None
    content: bytes | None = None

    @property
    def is_here(self) -> bool:
        return self.content is not None or self.path is not None

    def size(self) -> int:
        """Returns the bytes of a blob that is here. Raises ``FileNotFoundError`` if it was evicted since."""
        return len(self.content) if self.content is not None else self._file().stat().st_size

    def read(self) -> bytes:
        """Returns the whole content of a blob that is here. Raises ``FileNotFoundError`` if it was evicted since."""
        return self.content if self.content is not None else self._file().read_bytes()

    def _file(self) -> Path:
        if self.path is None:
            raise FileNotFoundError(self.reason)
        return Path(self.path)


# Requests of clients: one outstanding request per connection; every request gets exactly one reply.


class AskStatus(Struct, frozen=True, tag="status"):
    """Answered by ``SwarmStatus``."""


class AskPeers(Struct, frozen=True, tag="peers"):
    """Answered by ``PeerList``."""


class Share(Struct, frozen=True, tag="share"):
    """Announces groups whose blobs are already in the content store. Answered by ``Done``."""

    family: Hash16
    tokenizer: Hash16
    policy_version: int
    groups: tuple[GroupAdvert, ...]


class AskSeenGroups(Struct, frozen=True, tag="seen"):
    """Answered by ``SeenGroups``: at most ``limit`` groups with a cursor above ``after``, oldest first."""

    after: int
    limit: Annotated[int, Meta(ge=1, le=4096)]


class Fetch(Struct, frozen=True, tag="fetch"):
    """Answered by ``FetchedList``, one entry for each wanted blob in the same order, within the deadline."""

    wanted: Annotated[tuple[Wanted, ...], Meta(max_length=4096)]
    deadline_seconds: Annotated[float, Meta(gt=0.0)]


class KnownPartners(Struct, frozen=True):
    """What the learner knows of averaging with this family, by which partners are chosen and weighed."""

    past: FamilyPast = FamilyPast()  # distances of partners' weights from ours
    learnt: float = 0.0  # the length of what we learnt, to compare distances with until enough are known
    avoided: Annotated[tuple[str, ...], Meta(max_length=256)] = ()  # peers that did harm


class Average(Struct, frozen=True, tag="average"):
    """Seeks one peer of the family to average weights with; ``offer.blob`` is already in the content store.

    Answered by ``AverageReply`` once an exchange was committed or the search is over; an exchange that runs at the
    deadline is finished first. The exchange is abandoned when the client closes its connection.
    """

    offer: Offer
    layout: tuple[tuple[str, tuple[int, ...]], ...]  # ``TensorLayout.tensors``
    deadline_seconds: Annotated[float, Meta(gt=0.0)]
    known: KnownPartners = KnownPartners()


class AskProgress(Struct, frozen=True, tag="progress"):
    """Answered by ``FetchProgress``, one entry for each blob in the same order."""

    blobs: Annotated[tuple[Hash32, ...], Meta(max_length=4096)]


class ShareState(Struct, frozen=True, tag="share_state"):
    """Announces a state from now on, and keeps its blobs in the content store. Answered by ``Done``."""

    advert: StateAdvert


class AskStates(Struct, frozen=True, tag="states"):
    """Answered by ``States``: the states that peers of this family announce now."""

    family: Hash16


class Beat(Struct, frozen=True, tag="beat"):
    """Sets the node's heartbeat from now on, until the next beat. Answered by ``Done``."""

    heartbeat: Heartbeat


class SetPaused(Struct, frozen=True, tag="set_paused"):
    """Says whether the learner rests on purpose: heartbeats then have the phase "paused". Answered by ``Done``."""

    paused: bool


class RaiseStore(Struct, frozen=True, tag="raise_store"):
    """Raises the content store's limit to at least this, until the process ends; never lowers it. Answered by ``Done``.

    Only the learner knows how large the weights are that the store must have room for.
    """

    store_bytes: Annotated[int, Meta(ge=1)]


class Judge(Struct, frozen=True, tag="judge"):
    """Reports the learner's judgement of a peer. Answered by ``Done``."""

    peer: str
    blob: Hash32
    judgement: Judgement
    detail: str


class AskDonors(Struct, frozen=True, tag="donors"):
    """Answered by ``DonorOffers``. Donors that come from now on get ``terms``."""

    terms: LendTerms


class UseDonor(Struct, frozen=True, tag="use_donor"):
    """Takes a donor's stream. Answered by ``Carrying``; from then on this connection is that stream, until it ends."""

    peer: str


class CutOffDonor(Struct, frozen=True, tag="cut_off_donor"):
    """Ends a donor's stream, after its entry was removed from the list. Answered by ``Done``."""

    peer: str


class DropDonor(Struct, frozen=True, tag="drop_donor"):
    """Refuses a donor for good. Answered by ``Done``."""

    peer: str
    because: str


class Decree(Struct, frozen=True, tag="decree"):
    """Spreads a document that the owner of the private cluster signed to all members. Answered by ``Done``."""

    kind: Literal["revocations", "key_change"]
    document: bytes

    def __repr__(self) -> str:  # a change of key is a secret
        return f"Decree({self.kind!r}, …)"


class LeaveLetter(Struct, frozen=True, tag="leave_letter"):
    """Leaves a sealed invite at this node, or at a relay of it, for a newcomer with a code. Answered by ``LetterLeft``.
    Its text forms show nothing."""

    letter: HoldLetter

    def __repr__(self) -> str:
        return "LeaveLetter(…)"


class AskLetter(Struct, frozen=True, tag="ask_letter"):
    """Answered by ``LetterSeen``."""

    lookup: Hash16


class Leave(Struct, frozen=True, tag="leave"):
    """Says goodbye to the swarm and ends the process. Answered by ``Done``."""

    reason: str


Request = (
    AskStatus
    | AskPeers
    | Share
    | AskSeenGroups
    | Fetch
    | AskProgress
    | ShareState
    | AskStates
    | Average
    | Beat
    | SetPaused
    | RaiseStore
    | Judge
    | AskDonors
    | UseDonor
    | DropDonor
    | CutOffDonor
    | Decree
    | LeaveLetter
    | AskLetter
    | Leave
)


class PeerList(Struct, frozen=True, tag="peers"):
    peers: tuple[PeerStatus, ...]


class SeenGroups(Struct, frozen=True, tag="seen"):
    groups: tuple[SeenGroup, ...]


class FetchedList(Struct, frozen=True, tag="fetched"):
    fetched: tuple[Fetched, ...]


class AverageReply(Struct, frozen=True, tag="averaged"):
    """The result of the search. With a partner, ``theirs`` is to be averaged with our offer, exactly once."""

    partner: str | None
    theirs: Offer | None
    path: str | None  # the partner's blob: decodes, finite, bounded; stays for a minute, so open it at once
    weight: float  # of the difference from ours: 1, or less if it is unusually long (``swarm.averaging.norm_history``)
    because: str  # how every proposal and exchange ended, in words
    seconds: float
    past: FamilyPast = FamilyPast()  # of the request, with this search: to be passed with the next


class FetchProgress(Struct, frozen=True, tag="progress"):
    here_bytes: tuple[int, ...]  # of each blob, verified and on disk; 0 if it is neither here nor being fetched


class States(Struct, frozen=True, tag="states"):
    states: tuple[SeenState, ...]


class DonorOffer(Struct, frozen=True):
    """A donor whose stream waits to be taken."""

    peer: str
    name: str  # shown escaped
    since_seconds: float  # Unix time


class DonorOffers(Struct, frozen=True, tag="donor_offers"):
    donors: tuple[DonorOffer, ...]


class LetterLeft(Struct, frozen=True, tag="letter_left"):
    holder: str  # peer id


class LetterSeen(Struct, frozen=True, tag="letter_seen"):
    receipt: LetterReceipt


class Carrying(Struct, frozen=True, tag="carrying"):
    """The connection is the donor's stream from the next byte on."""

    peer: str


class Done(Struct, frozen=True, tag="done"):
    """The request was carried out; it has no result."""


class RequestRefused(Struct, frozen=True, tag="refused"):
    """The request could not be carried out. ``reason`` is one of ``protocol.errors``, or "busy"."""

    reason: str
    message: str


Reply = (
    SwarmStatus
    | PeerList
    | SeenGroups
    | FetchedList
    | FetchProgress
    | States
    | AverageReply
    | DonorOffers
    | LetterLeft
    | LetterSeen
    | Carrying
    | Done
    | RequestRefused
)
