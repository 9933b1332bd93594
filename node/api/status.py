"""What a running node says of itself over its API: plain structs, the same for the command line and for programs."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from node.events import CheckpointSaved, Fault, Loading, Ready, RoundDone
from protocol.messages import Heartbeat
from swarm.api import PeerStatus, SwarmStatus


class State(StrEnum):
    STARTING = "starting"  # no round has begun yet
    TRAINING = "training"
    RECOVERING = "recovering"  # the learner ended and is being started again
    STOPPING = "stopping"


class ChildStatus(Struct, frozen=True):
    pid: int | None  # None while it is not running
    restarts: int
    last_end: str | None  # how it last ended, in words; None if it never did


class NodeStatus(Struct, frozen=True):
    """Answer of GET /api/v1/status. Null is what is not known yet."""

    version: str
    pid: int  # of the supervisor
    home: str
    name: str
    peer: str
    model: str
    state: State
    uptime_seconds: float
    swarm_process: ChildStatus
    learner_process: ChildStatus
    swarm: SwarmStatus | None  # as last polled; None while the swarm process does not answer
    loading: Loading | None
    ready: Ready | None
    round: RoundDone | None
    checkpoint: CheckpointSaved | None
    fault: Fault | None  # the learner's last
    notes: tuple[str, ...]  # what the supervisor last told the user, newest last


class HeartbeatView(Struct, frozen=True):
    """What a peer says of itself, with names to its fields; nothing of it is checked. Its strings are a stranger's."""

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
    success_by_task: dict[str, float]


class PeerView(Struct, frozen=True):
    """One peer as this node sees it."""

    peer: str
    connected: bool
    addresses: tuple[str, ...]
    round_trip_seconds: float | None
    heartbeat: HeartbeatView | None
    heartbeat_age_seconds: float | None
    groups_received: int  # adverts of groups seen
    groups_used: int
    groups_rejected: int
    reputation: float  # 1 trusted, 0 banned
    banned_because: str | None
    clock_offset_seconds: float | None = None  # its clock minus ours, at its last heartbeat; the way here included


class PeersAnswer(Struct, frozen=True):
    """Answer of GET /api/v1/peers: as last polled, connected ones first."""

    peers: tuple[PeerView, ...]


class StopAnswer(Struct, frozen=True):
    """Answer of POST /api/v1/stop: the node finishes its step, checkpoints, says goodbye and ends."""

    stopping: bool


class HealthAnswer(Struct, frozen=True):
    """Answer of GET /health."""

    healthy: bool
    state: State
    because: str | None  # why it is not


class Refusal(Struct, frozen=True):
    """Why a request was not served, and what to do."""

    error: str


class Note(Struct, frozen=True, tag_field="event", tag="note"):
    """What the supervisor tells the user, among the events."""

    time_seconds: float  # Unix time
    text: str


def health_of(status: NodeStatus) -> HealthAnswer:
    """A node is healthy while it trains, or is on its way to its first round, and its swarm process answers."""
    because = None
    if status.state is State.RECOVERING:
        because = f"the learner ended and is being started again: {status.learner_process.last_end}"
    elif status.state is State.STOPPING:
        because = "it is stopping"
    elif status.state is State.TRAINING and status.swarm is None:
        because = "the swarm process does not answer"
    return HealthAnswer(because is None, status.state, because)


def peer_view(status: PeerStatus) -> PeerView:
    """The same, as the API shows it."""
    return PeerView(
        peer=status.peer,
        connected=status.connected,
        addresses=status.addresses,
        round_trip_seconds=status.round_trip_seconds,
        heartbeat=None if status.heartbeat is None else _heartbeat_view(status.heartbeat),
        heartbeat_age_seconds=status.heartbeat_age_seconds,
        groups_received=status.groups_received,
        groups_used=status.groups_used,
        groups_rejected=status.groups_rejected,
        reputation=status.reputation,
        banned_because=status.banned_because,
        clock_offset_seconds=status.clock_offset_seconds,
    )


def _heartbeat_view(beat: Heartbeat) -> HeartbeatView:
    return HeartbeatView(
        name=beat.name,
        software=beat.software,
        model=beat.model,
        family=beat.family.hex(),
        tokenizer=beat.tokenizer.hex(),
        round=beat.round,
        policy_version=beat.policy_version,
        phase=beat.phase,
        tokens_per_second=beat.tokens_per_second,
        groups_shared=beat.groups_shared,
        groups_used=beat.groups_used,
        success_by_task={entry.task: entry.success for entry in beat.tasks},
    )
