"""Every answer of the HTTP API: plain structs, the same for the command line, for pages and for programs.

``node/api/openapi.py`` describes the API from these. A value that is not known yet is null. Strings received from a
peer are escaped (``node.printable``): they move no cursor and fake no line; a page must still treat them as text, not
as markup. Lists are bounded, whatever strangers announce. Times are Unix seconds by this node's clock.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct

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
    StagesHeld,
    Usage,
)
from protocol.messages import RELAYING
from swarm.api import ExchangeStatus, SwarmStatus


class Loss(Struct, frozen=True):
    """A task on which success has fallen from its best by more than noise: ``node.api.losses`` has the rule."""

    task: str
    measured: str  # "practice": smoothed reward of own completions; "held-out": reward on held-out prompts
    best: float  # 0 to 1
    best_round: int
    best_seconds: float
    now: float
    fall: float  # best - now, above 0
    since_round: int  # the last round at which it was still near its best
    since_seconds: float
    went_with: tuple[str, ...]  # what else changed meanwhile, in words: no cause is claimed; at most 4
    sentence: str  # the whole of it in plain words, ``went_with`` included


class Withdrawal(Struct, frozen=True):
    """Peers that teach this node nothing, or little, for a while, since its success fell: a precaution, not a fault.
    ``node.events.InfluenceWithdrawn`` has what is measured."""

    time_seconds: float
    round: int
    since_round: int
    lost_share: float  # of the usual success, 0 to 1
    peers: tuple[str, ...]
    names: tuple[str, ...]  # of ``peers``, in their order
    action: str  # "set_aside" or "on_probation"
    until_round: int
    weights_of_round: int | None  # that were put back; None: they stay
    done: str  # what is done about each of them, in words
    sentence: str  # the whole of it in plain words


class PeerShare(Struct, frozen=True):
    """The part of a gain that is counted to one peer."""

    peer: str
    name: str | None  # as the peer calls itself; None where it was never heard
    gain: float  # reward; below 0 where success fell


class TaskGain(Struct, frozen=True):
    """One task: smoothed reward of own completions, 0 to 1 as a rule.

    ``now - before = from_others + from_itself + not_attributed`` up to rounding.
    """

    task: str
    first: float  # before the first step, on held-out prompts; where that was not measured, in its first round
    before: float  # before anything of others was learnt; ``first`` where the task was first practised later
    now: float
    best: float
    best_round: int
    samples: int  # own completions so far
    practised_round: int  # the last round with own completions of it
    from_others: float
    from_itself: float
    not_attributed: float  # no group of this task was learnt from shortly before
    peers: tuple[PeerShare, ...]  # the greatest share of either sign first; at most ``gains.MAX_PEERS_OF_TASK``
    change: float | None = None  # now - before, while alone now - first; None: it may be chance
    turns: str | None = None  # of conversations: how many they took, and how many of each number were won


class PeerGain(Struct, frozen=True):
    """What is counted to one peer, over all tasks."""

    peer: str
    name: str | None
    model: str | None  # as the peer calls it
    gain: float  # mean over this node's tasks, so that peers, ``from_itself`` and ``not_attributed`` add up
    by_task: dict[str, float]  # reward by task; at most ``gains.MAX_TASKS_OF_PEER``
    groups: int  # times that a group of it was learnt from
    last_round: int  # in which one was learnt from


class GainsAnswer(Struct, frozen=True):
    """Answer of GET /api/v1/gains: what this node can do, what it could before, and what it has from whom.

    Means are over this node's tasks. ``mean_now - mean_before = from_others + from_itself + not_attributed``.
    """

    sentence: str  # for the top of a page
    how: str  # the formula in one sentence
    limits: str  # what it does not say
    rounds: int  # that were looked at
    others_since_round: int | None  # the first round that learnt from others; None: none has yet
    mean_first: float | None
    mean_before: float | None
    mean_now: float | None
    from_others: float
    from_itself: float
    not_attributed: float
    tasks: tuple[TaskGain, ...]  # the greatest gain from others first; at most ``gains.MAX_TASKS``
    peers: tuple[PeerGain, ...]  # the greatest gain first; at most ``gains.MAX_PEERS``
    peers_left_out: int
    losses: tuple[Loss, ...]
    error: float = 0.0  # of the change of the mean by chance, one standard deviation
    change: float | None = None  # of the mean, as of a task
    averagings: int = 0  # of weights with peers: what they brought is in the figures
    started_from_peers: bool = False  # a start took over weights of peers


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
    # At most one, with every address that others may use. Empty: see ``hint``.
    commands: tuple[str, ...]
    hint: str | None  # what to do before or instead, in words; None where the command is all
    qr: bool  # /api/v1/join.svg shows the command


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
    withdrawn: tuple[Withdrawal, ...] = ()  # from which peers it learns less for now, and why; oldest first
    join: JoinLine | None = None  # None while the swarm process does not answer
    not_saved: NotSaved | None = None  # no checkpoint can be written: what was learnt since the last is in memory alone
    damaged: CheckpointsDamaged | None = None  # checkpoints that this start found damaged and keeps aside
    clock: str | None = None  # what is wrong with this machine's clock, compared with those of peers
    nothing_learnt: str | None = None  # why the newest rounds taught nothing, and what to do; None while it learns
    reward_falls: str | None = None  # that the reward only falls, and what to do; None while it does not
    hangs: str | None = None  # which phase lasts far longer than usual, in words; None while none does
    paused: Paused | None = None  # None while the node trains
    engine: EngineChanged | None = None  # which engine generates, and why; None until the learner has one
    trying: str | None = None  # what the answer to POST /api/v1/try waits for, in words; None while nobody asks
    donors: DonorsShared | None = None  # who generated the last round's groups; None while there is no donor
    stages: StagesHeld | None = None  # who holds the layers that this machine does not; None while it holds all


class HealthAnswer(Struct, frozen=True):
    """Answer of GET /health."""

    healthy: bool
    state: NodeState
    because: str | None  # why it is not


class SettingsAnswer(Struct, frozen=True):
    """Answer of GET /api/v1/settings: what the node runs with, as it was resolved when it started."""

    pid: int  # of the supervisor
    home: str
    config: dict[str, Any]  # ``node.configuration.Config`` as JSON; what is "auto" is chosen by the learner


class StopAnswer(Struct, frozen=True):
    """Answer of POST /api/v1/stop: the node finishes its step, checkpoints, says goodbye and stops."""

    stopping: bool


class PauseAnswer(Struct, frozen=True):
    """Answer of POST /api/v1/pause and /api/v1/resume: ``NodeStatus.paused`` from now on. After a resume it is not null
    where the schedule, or what the machine is used for, is still against training."""

    paused: Paused | None


class ErrorAnswer(Struct, frozen=True):
    """Why a request was not served, and the remedy."""

    error: str


class Note(Struct, frozen=True, tag_field="event", tag="note"):
    """A message of the supervisor to the user, as one of the events."""

    time_seconds: float
    text: str


class Mark(Struct, frozen=True):
    """Something that happened at one time of a chart. Neighbours of one kind are merged where they are many."""

    time_seconds: float  # of the first
    until_seconds: float  # of the last; the same where there is one
    round: int  # rounds done at the last
    kind: str  # a key of ``marks.KINDS``
    text: str  # in words, with names of peers escaped
    count: int  # how many were merged into it


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
    # From when to when nothing was done, oldest first: the node did not run, or paused. At most ``series.MAX_GAPS``.
    gaps: tuple[tuple[float, float], ...] = ()


class HistoryAnswer(Struct, frozen=True):
    """Answer of GET /api/v1/history: at most ``points`` a series, oldest first."""

    rounds: Timeline  # of the learner, a sample a round
    usage: Timeline  # of machine and network
    restored: bool  # whether it includes already what was recorded before this start
    evaluations: Timeline = Timeline((), ())  # a sample an evaluation: the mean reward on held-out prompts, and by task
    marks: tuple[Mark, ...] = ()  # oldest first, of the same time; at most ``marks.MAX_MARKS``


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
    groups_offered: int
    groups_used: int
    success_by_task: dict[str, float]  # running mean reward, 0 to 1
    samples_by_task: dict[str, int] = {}  # completions behind it
    connected: str = ""  # whom it says it is connected to: ``protocol.connections``, in hex

    @property
    def is_relay(self) -> bool:
        """Whether it is that of a peer that only introduces and relays: it trains no model."""
        return not self.model and self.phase == RELAYING


def end_of(peer: str) -> str:
    """Returns a short name for a peer that has none."""
    return f"…{peer[-5:]}"


class PeerView(Struct, frozen=True):
    """One peer as this node sees it."""

    peer: str
    connected: bool
    addresses: tuple[str, ...]
    round_trip_seconds: float | None
    heartbeat: HeartbeatView | None
    heartbeat_age_seconds: float | None  # None: none came, or the peer has left since
    groups_announced: int  # by it
    groups_used: int
    groups_rejected: int
    reputation: float  # 1 trusted, 0 banned
    banned_because: str | None
    clock_offset_seconds: float | None = None  # its clock minus ours, at its last heartbeat; transit time included
    exchanges_committed: int = 0  # of weights
    exchanges_abandoned: int = 0
    last_exchange: ExchangeStatus | None = None
    groups_fetched: int = 0  # times that it fetched one of our groups
    # Its observed conduct, counted by ``swarm.peers.reputation.Conduct``; ``RolloutsAnswer.words`` explains each.
    conduct: dict[str, int] = {}
    outcomes: dict[str, int] = {}  # of its groups, by outcome or reason, since the supervisor's start
    withdrawn: str | None = None  # that this node learns nothing, or little, from it for now, in words

    def is_heard(self, within_seconds: float) -> bool:
        """Whether its newest heartbeat is no older. A banned peer is not heard."""
        age_seconds = self.heartbeat_age_seconds
        return self.banned_because is None and age_seconds is not None and age_seconds <= within_seconds

    def is_present(self, within_seconds: float) -> bool:
        """Whether it is connected or heard. A banned peer is neither."""
        return self.banned_because is None and (self.connected or self.is_heard(within_seconds))

    @property
    def shown_name(self) -> str:
        """What it calls itself, and the end of its id where it never did."""
        return self.heartbeat.name if self.heartbeat is not None else end_of(self.peer)


class PeersAnswer(Struct, frozen=True):
    """Answer of GET /api/v1/peers: from the last poll, connected peers first."""

    peers: tuple[PeerView, ...]


class LinkNode(Struct, frozen=True):
    """One node of the picture."""

    peer: str
    name: str
    model: str
    family: str  # hex; empty where no heartbeat came
    ours: bool
    connected: bool  # to us
    claims: bool  # whether it says whom it is connected to


class Link(Struct, frozen=True, array_like=True):
    """A connection, as a JSON array [a, b, known]."""

    a: int  # index in ``LinksAnswer.nodes``
    b: int  # a < b
    known: int  # 0: our own connection, certain; 1: both ends claim it; 2: one end claims it


class LinksAnswer(Struct, frozen=True):
    """Answer of GET /api/v1/links: who is connected to whom, as far as this node knows. This node is the first."""

    nodes: tuple[LinkNode, ...]  # at most ``links.MAX_NODES``
    links: tuple[Link, ...]  # ours first; at most ``links.MAX_LINKS``
    nodes_left_out: int
    links_left_out: int
    silent: int  # nodes shown that do not say whom they are connected to


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
    groups_offered: int
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
    offered: int  # own groups that peers may fetch
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


class SampleAnswer(Struct, frozen=True):
    """One completion, as text."""

    text: str  # at most ``events.SAMPLE_CHARACTERS``; lines stay, what else does not show is escaped
    cut: bool  # whether the completion was longer
    reward: float
    right: bool  # its reward is at least half


class SampleGroup(Struct, frozen=True):
    """One question with some of its answers. ``whose`` says who wrote the answers; the question is always made here."""

    whose: str  # "ours" or "peer"
    peer: str | None  # the peer's id; None where they are ours
    name: str | None  # as the peer calls itself
    model: str | None  # ours, or as the peer calls it
    task: str
    question: str
    expected: str | None  # the reference answer, where the task has one
    answers: tuple[SampleAnswer, ...]  # right and wrong ones where there are both; at most ``events.SAMPLE_ANSWERS``
    completions: int  # of the whole group
    reward_mean: float  # of the whole group


class SamplesNews(Struct, frozen=True, tag_field="event", tag="samples"):
    """There is something new at /api/v1/samples, as one of the events: its text is not for every reader."""

    time_seconds: float
    round: int


class SamplesAnswer(Struct, frozen=True):
    """Answer of GET /api/v1/samples: from a recent round. Nothing of it is recorded."""

    round: int | None  # None while nothing has been sampled
    time_seconds: float | None
    ours: SampleGroup | None
    learnt_from: SampleGroup | None  # a group of a peer that this round, or a recent one, learnt from
    learnt_round: int | None
    learnt_seconds: float | None
