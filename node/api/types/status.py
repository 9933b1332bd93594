"""What this node does now."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from node.api.types.gains import Loss
from node.events import (
    Averaged,
    CheckpointSaved,
    CheckpointsDamaged,
    DonorsShared,
    EngineChanged,
    Evaluated,
    Fault,
    LearnerReady,
    Loading,
    NotSaved,
    RoundDone,
    Usage,
)
from swarm.api import SwarmStatus


class NodeState(StrEnum):
    STARTING = "starting"  # no round has begun yet
    TRAINING = "training"
    PAUSED = "paused"  # the learner rests, and its memory is given back; peers stay connected and are served
    RECOVERING = "recovering"  # the learner ended and is being restarted
    STOPPING = "stopping"


class ChildStatus(Struct, frozen=True):
    """One of the node's two processes."""

    pid: int | None  # None while it is not running
    restarts: int
    last_end: str | None  # how it last ended, in words; None if it never ended


class JoinLine(Struct, frozen=True):
    """How a friend joins this node's swarm."""

    private: bool
    # Each is one way, the one that is most likely to work first; at most 3. Empty: see ``hint``.
    commands: tuple[str, ...]
    hint: str | None  # what to do before or instead, in words; None where the first command is all
    qr: bool  # /api/v1/join.svg shows the first command


class Paused(Struct, frozen=True):
    """Why the node does not train now, though it could. Times are Unix seconds."""

    since: float
    because: str  # in words
    until: float | None  # None: until ``starling resume``, or until what it waits for is over


class NodeStatus(Struct, frozen=True):
    """Answer of GET /api/v1/status: this node, now."""

    version: str
    pid: int  # of the supervisor
    home: str
    name: str
    peer: str
    model: str  # as peers see it; the configured one is among the settings
    state: NodeState
    uptime_seconds: float
    swarm_process: ChildStatus
    learner_process: ChildStatus
    swarm: SwarmStatus | None  # from the last poll; None while the swarm process does not answer
    loading: Loading | None
    ready: LearnerReady | None
    round: RoundDone | None
    checkpoint: CheckpointSaved | None
    fault: Fault | None  # the learner's last fault
    notes: tuple[str, ...]  # the supervisor's last messages to the user, newest last
    page: str | None = None  # address of the web page, for a browser on this machine
    offered: Averaged | None = None  # the last offer of our weights, with or without a partner
    averaged: Averaged | None = None  # the last offer that led to an outer step
    usage: Usage | None = None  # memory and traffic
    waiting_for: str = ""  # what the node does now, in words
    evaluated: Evaluated | None = None  # the last measurement on held-out prompts since the node's start
    gained: str = ""  # ``GainsAnswer.sentence``: what it can do now, and what it has from whom
    losses: tuple[Loss, ...] = ()  # the greatest fall first; at most ``losses.MAX_LOSSES``
    join: JoinLine | None = None  # None while the swarm process does not answer
    not_saved: NotSaved | None = None  # no checkpoint can be written: what was learnt since the last is in memory alone
    damaged: CheckpointsDamaged | None = None  # checkpoints that this start found damaged and keeps aside
    clock: str | None = None  # what is wrong with this machine's clock, compared with those of peers
    paused: Paused | None = None  # None while the node trains
    engine: EngineChanged | None = None  # which engine generates, and why; None until the learner has one
    donors: DonorsShared | None = None  # who generated the last round's groups; None while there is no donor


class HealthAnswer(Struct, frozen=True):
    """Answer of GET /health."""

    healthy: bool
    state: NodeState
    because: str | None  # why it is not
