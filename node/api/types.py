"""Every answer of the HTTP API: plain structs, the same for the command line, for pages and for programs.

``node/api/openapi.py`` describes the API from these. A value that is not known yet is null. Strings received from a
peer are escaped (``node.printable``): they move no cursor and fake no line; a page must still treat them as text, not
as markup. Lists are bounded, whatever strangers announce. Times are Unix seconds by this node's clock.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from node.events import Averaged, CheckpointSaved, Evaluated, Fault, LearnerReady, Loading, RoundDone, Usage
from swarm.api import ExchangeStatus, SwarmStatus


class NodeState(StrEnum):
    STARTING = "starting"  # no round has begun yet
    TRAINING = "training"
    RECOVERING = "recovering"  # the learner ended and is being restarted
    STOPPING = "stopping"


class ChildStatus(Struct, frozen=True):
    """One of the node's two processes."""

    pid: int | None  # None while it is not running
    restarts: int
    last_end: str | None  # how it last ended, in words; None if it never ended


class NodeStatus(Struct, frozen=True):
    """Answer of GET /api/v1/status: this node, now."""

    version: str
    pid: int  # of the supervisor
    home: str
    name: str
    peer: str
    model: str
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


class ModelView(Struct, frozen=True):
    """The nodes that train one model of one family."""

    model: str
    family: str  # hex
    tokenizers: int  # how many different tokenizers the nodes have
    nodes: int
    names: tuple[str, ...]  # of some of the nodes
    tokens_per_second: float  # sum over the nodes
    round_most: int
    success: float | None  # over all tasks, weighted by samples
    success_by_task: dict[str, float]  # weighted by samples
    ours: bool


class TaskView(Struct, frozen=True):
    """One task over all nodes that report it."""

    task: str
    nodes: int
    samples: int  # a claim counts for at most ``swarm_summary.MAX_SAMPLES``
    success: float  # weighted by samples
    success_least: float
    success_most: float
    best_model: str  # of the node with the greatest success
    best_name: str


class SwarmAnswer(Struct, frozen=True):
    """Answer of GET /api/v1/swarm: what fresh heartbeats report, this node's included. These are unchecked claims."""

    nodes: int  # with a fresh heartbeat, this node included
    silent: int  # known peers whose heartbeat is old or never came
    banned: int  # peers left out because they are banned
    connected: int  # to this node
    tokens_per_second: float  # sum over the nodes
    groups_shared: int
    groups_used: int
    families: dict[str, int]  # nodes by family, in hex
    models: tuple[ModelView, ...]  # ours, then those of most nodes
    models_left_out: int  # beyond the bound of the list
    tasks: tuple[TaskView, ...]  # ours, then those that most nodes report
    tasks_left_out: int
    software: dict[str, int]  # nodes by name and version; those beyond the bound under "others"
    phases: dict[str, int]


class WhyNot(Struct, frozen=True):
    """One reason why something was not used, and how often it applied."""

    reason: str
    stage: str  # a key of ``reasons.STAGES``, or "unknown"
    because: str  # in words
    count: int


class RoundRollouts(Struct, frozen=True):
    """What one round did with rollout groups."""

    round: int
    time_seconds: float
    generated: int  # own groups
    informative: int  # own groups with a non-zero advantage
    dropped: int  # own groups whose rewards were all equal
    unfinished: int  # left for later rounds
    shared: int
    fetched: int  # foreign groups, over the network
    used: int  # foreign groups, for the first time
    replayed: int
    waiting: int  # foreign candidates that may be chosen later
    not_used: dict[str, int]  # foreign groups, by reason
    fetched_bytes: int
    alone_because: str | None


class GroupSeen(Struct, frozen=True):
    """One foreign group and its outcome."""

    time_seconds: float
    round: int
    peer: str
    name: str | None  # as the peer calls itself
    task: str
    completions: int
    reward_mean: float
    reward_spread: float  # standard deviation; 0 means that the group has no advantages of its own
    outcome: str  # "used", "replayed", or a reason
    because: str  # in words
    detail: str | None


class RolloutsAnswer(Struct, frozen=True):
    """Answer of GET /api/v1/rollouts: newest last."""

    rounds: tuple[RoundRollouts, ...]
    groups: tuple[GroupSeen, ...]
    not_used: tuple[WhyNot, ...]  # foreign groups, over all rounds since the supervisor's start, most frequent first
    announcements_not_taken: tuple[WhyNot, ...]  # since the swarm process's start
    words: dict[str, str]  # a sentence for every outcome, reason and conduct that this version knows


class Series(Struct, frozen=True):
    """One line of a chart."""

    name: str
    unit: str
    task: str | None  # of a series that exists once for each task
    values: tuple[float | None, ...]  # one for each time of its timeline; None where no value was recorded


class Timeline(Struct, frozen=True):
    """Series over the same times. Each time is the end of a stretch; all stretches have equally many samples."""

    time_seconds: tuple[float, ...]
    series: tuple[Series, ...]


class HistoryAnswer(Struct, frozen=True):
    """Answer of GET /api/v1/history: at most ``points`` a series, oldest first."""

    rounds: Timeline  # of the learner, a sample a round
    usage: Timeline  # of machine and network
    restored: bool  # whether it includes already what was recorded before this start
    evaluations: Timeline = Timeline((), ())  # a sample an evaluation: the mean reward on held-out prompts, and by task


class StopAnswer(Struct, frozen=True):
    """Answer of POST /api/v1/stop: the node finishes its step, checkpoints, says goodbye and stops."""

    stopping: bool


class HealthAnswer(Struct, frozen=True):
    """Answer of GET /health."""

    healthy: bool
    state: NodeState
    because: str | None  # why it is not


class ErrorAnswer(Struct, frozen=True):
    """Why a request was not served, and the remedy."""

    error: str


class Note(Struct, frozen=True, tag_field="event", tag="note"):
    """A message of the supervisor to the user, as one of the events."""

    time_seconds: float
    text: str
