"""Peers, one by one, as this node sees them."""

from __future__ import annotations

from msgspec import Struct

from protocol.messages import RELAYING
from swarm.api import ExchangeStatus


class HeartbeatView(Struct, frozen=True):
    """What a peer reports of itself in its heartbeat. None of it is checked."""

    name: str
    software: str
    model: str
    family: str  # hex
    tokenizer: str  # hex
    round: int
    policy_version: int
    phase: str
    tokens_per_second: float
    groups_shared: int
    groups_used: int
    success_by_task: dict[str, float]  # running mean reward, 0 to 1
    samples_by_task: dict[str, int] = {}  # completions behind it
    connected: str = ""  # whom it says it is connected to: ``protocol.connections``, in hex

    @property
    def is_relay(self) -> bool:
        """Whether it is that of a peer that only introduces and relays: it trains no model."""
        return not self.model and self.phase == RELAYING


class PeerView(Struct, frozen=True):
    """One peer as this node sees it."""

    peer: str
    connected: bool
    addresses: tuple[str, ...]
    round_trip_seconds: float | None
    heartbeat: HeartbeatView | None
    heartbeat_age_seconds: float | None  # None: none came, or the peer has left since
    groups_received: int  # adverts of its groups
    groups_used: int
    groups_rejected: int
    reputation: float  # 1 trusted, 0 banned
    banned_because: str | None
    clock_offset_seconds: float | None = None  # its clock minus ours, at its last heartbeat; transit time included
    exchanges_committed: int = 0  # of weights
    exchanges_abandoned: int = 0
    last_exchange: ExchangeStatus | None = None
    groups_given: int = 0  # times that a rollout group was sent to it in full
    # Its observed conduct, counted by ``swarm.peers.reputation.Conduct``; ``RolloutsAnswer.words`` explains each.
    conduct: dict[str, int] = {}
    outcomes: dict[str, int] = {}  # of its groups, by outcome or reason, since the supervisor's start


class PeersAnswer(Struct, frozen=True):
    """Answer of GET /api/v1/peers: from the last poll, connected peers first."""

    peers: tuple[PeerView, ...]
