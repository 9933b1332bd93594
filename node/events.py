"""The events that the learner process reports to the supervisor: on its standard output, one JSON object per line,
tagged by ``event``. And what the supervisor writes on the learner's standard input.

The supervisor writes these lines to ``metrics.jsonl``, one kind of them shortened (``node.api.record.recorded_line``),
and keeps the newest of each kind for the API. A number that does not exist (a loss in a round without an optimizer
step) is null, never NaN. Imports no torch.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from node.policy.model_name import model_name

STOP_LINE = "stop"  # on the learner's standard input: finish the round, checkpoint, exit 0
PAUSE_LINE = "pause"  # the same, because the node pauses: it will be started again


class LearnerStart(Struct, frozen=True):
    """The first line on the learner's standard input."""

    home: str  # the data directory: HOME/checkpoints, HOME/swarm.sock
    config: dict[str, Any]  # ``Config.model_dump(mode="json")``, resolved


class TimedEvent(Struct, frozen=True, kw_only=True, tag_field="event"):
    """What every event has."""

    time_seconds: float  # Unix time by our clock


class Loading(TimedEvent, frozen=True, kw_only=True, tag="loading"):
    """What the learner is loading before its first round."""

    what: str  # "policy", "tasks", "engine", "checkpoint", "devices", "machines"
    seconds: float  # since the process started


class Planned(TimedEvent, frozen=True, kw_only=True, tag="planned"):
    """What the learner runs with, so that it fits this machine's memory. Reported before anything is loaded."""

    model: str
    choice: str  # in one line, with the peak and why
    adapter_rank: int  # 0: every weight is trained
    four_bit: bool
    dtype: str
    rows: int  # at the start; fewer after memory ran out
    batch_tokens: int  # likewise
    recompute: bool
    optimizer: str
    averages: bool  # there is room to average weights with peers and to publish them
    store_bytes: int
    host_bytes: int  # of main memory, at the peak, by estimate
    host_limit_bytes: int
    device_bytes: int | None  # of a GPU; None without
    device_limit_bytes: int | None


class LearnerReady(TimedEvent, frozen=True, kw_only=True, tag="ready"):
    """Everything is loaded; the first round begins."""

    model: str  # as configured
    family: str  # hex
    tokenizer: str  # hex
    parameters: int
    trainable_parameters: int
    device: str
    dtype: str
    tasks: tuple[str, ...]
    round: int  # rounds already done
    checkpoint: str | None  # path from which it continues
    seconds: float  # since the process started
    rows: int | None = None  # sequences decoded side by side, to begin with
    batch_tokens: int | None = None  # padded tokens of one pass, to begin with
    memory_bytes: int | None = None  # in all, of the device, or of the machine where that is a CPU
    name: str | None = None  # of the model, as its heartbeats say it

    @property
    def model_name(self) -> str:
        """What the model is called wherever people read it."""
        return self.name or model_name(self.model)


Stage = Literal["looking", "fetching", "verifying", "measuring", "failed", "done", "given_up"]


class StateSyncing(TimedEvent, frozen=True, kw_only=True, tag="catching_up"):
    """The progress of a start from the weights of peers. After "done" or "given_up" the learner continues to load."""

    stage: Stage
    because: str  # in words; names peers only by their ids
    seconds: float  # since the search began
    here_bytes: int = 0  # of the state's blobs, verified and on disk
    total_bytes: int = 0
    holders: int = 0  # peers that announce the state
    weights: str | None = None  # hash of the state, hex
    policy_version: int | None = None


class Phases(Struct, frozen=True, kw_only=True):
    """Seconds of one round, by phase."""

    allocate: float
    generate: float
    collect: float  # waiting for foreign groups after generation ended
    score: float
    learn: float
    publish: float  # new weights to the engine, own groups to the swarm


class PhaseBegan(TimedEvent, frozen=True, kw_only=True, tag="phase"):
    """The round under way has begun a phase; reported for phases that took over a second in the round before, and
    always for "evaluate", which comes between two rounds."""

    round: int  # under way
    phase: str  # a field of ``Phases``, or "evaluate"


class TurnsUsed(Struct, frozen=True):
    """Own conversations that took ``turns`` actions. Over several rounds those of each count less than the next's."""

    turns: int
    episodes: float
    won: float  # of them, with a reward of 0.5 at least


class FoundRate(Struct, frozen=True, kw_only=True):
    """That a node changed its learning rate last, as ``learner.learning_rate = "auto"`` does."""

    since_round: int
    before: float  # the rate until then
    to: float  # where it goes, by steps
    because: str  # in words


class RoundDone(TimedEvent, frozen=True, kw_only=True, tag="round"):
    """One round is done. Shares are 0 to 1; log-probabilities and entropies are in nats."""

    round: int  # rounds done, this one included
    policy_version: int
    seconds: float
    phases: Phases
    reward: float  # mean over own completions
    reward_by_task: dict[str, float]  # own groups of this round
    completions_by_task: dict[str, int] = field(default_factory=dict)  # of own groups: what was allocated
    success_by_task: dict[str, float]  # running mean reward, without the initial value of V_θ
    turns_by_task: dict[str, tuple[TurnsUsed, ...]] = field(default_factory=dict)  # own conversations of this round
    own_groups: int
    own_groups_informative: int  # with a non-zero advantage
    own_groups_dropped: int = 0  # because all their rewards were equal (learner.resample)
    own_groups_resumed: int = 0  # begun in an earlier round (learner.overprovision)
    own_groups_unfinished: int = 0  # left for later rounds
    # Versions between the oldest token of an own completion and the weights that learn.
    staleness_mean: float | None = None
    staleness_max: int | None = None
    foreign_groups_used: int  # for the first time
    foreign_groups_replayed: int = 0  # used in an earlier round too
    foreign_rejected: dict[str, int]  # candidates and fetched groups not used, by ``ForeignOutcome`` or error
    groups_offered: int = 0  # own ones that peers may fetch from now on
    groups_offered_total: int = 0
    foreign_groups_used_total: int
    tokens_generated: int
    tokens_generated_total: int
    tokens_trained: int  # completion tokens with a non-zero advantage
    tokens_per_second: float  # generated, over the whole round
    bytes_fetched: int
    bytes_fetched_total: int = 0
    hints: int = 0  # questions of peers that the own policy was asked with the answer as a remark
    hints_right: int = 0  # of them, those that it answered rightly in its own words
    foreign_completions: int = 0  # trained on: of foreign groups, those with a non-zero advantage
    foreign_completions_total: int = 0  # each as often as it was trained on
    bytes_per_foreign_completion: float | None = None  # of the totals
    scoring_failures: int
    loss: float | None
    gradient_norm: float | None  # before clipping
    learning_rate: float | None = None  # of the next whole step
    found_rate: FoundRate | None = None  # None: the rate is the configured one, or that of the model's size
    step_kl: float | None = None  # how far the step moved the policy, nats a token; None: it was not measured
    steps_skipped_total: int  # optimizer steps skipped for a non-finite gradient
    effective_sample_share: float | None  # (Σw)² / (n Σw²) over spans
    clip_share: float | None  # spans whose weight was truncated at the cap, or masked out for it
    ratio_clip_share: float | None = None  # tokens without a gradient for their ratio to the proximal policy
    floor_share: float | None  # spans whose weight was raised to the floor
    filter_share: float | None  # completions with a non-zero advantage that a filter or a mask removed
    text_share: float | None = None  # completions learnt from as text, without behaviour log-probabilities
    foreign_unusable: int = 0  # foreign completions with impossible log-probabilities: dropped, or taken as text
    kl: float | None = None  # to the reference, per token, over own completions; None without objective.kl_weight
    # How far the engine is from the learner, nats a token (``node.engines.agreement``); None: no token to tell it by.
    engine_gap: float | None = None  # mean |log π_θ − log μ|
    engine_kl: float | None = None  # KL(μ‖π_θ)
    engine_bound: float | None = None  # up to which KL is rounding, with this engine and precision
    multi_token_span_share: float | None  # of foreign spans, those longer than one token on either side
    entropy: float | None  # mean over trained tokens
    divergence_by_peer: dict[str, float]  # mean over trained completions, own ones under "self"
    alone_because: str | None  # None while foreign groups arrive
    foreign_fetched: int = 0  # groups that came over the network
    foreign_waiting: int = 0  # candidates that may be chosen in a later round
    samples_by_task: dict[str, int] = field(default_factory=dict)  # own completions behind ``success_by_task``
    trained_tokens_per_second: float | None = None  # over the whole round
    device_memory_bytes: int | None = None  # what torch holds of a GPU (``reserved_bytes``); None on a CPU
    # Σ count · |A| · tokens of the groups learnt from, by task and by peer ("self": own ones; "others": peers beyond
    # the bound): their weight in the gradient, before importance weights.
    gradient_mass_by_task: dict[str, dict[str, float]] = field(default_factory=dict)


class GroupOutcome(Struct, frozen=True):
    """One foreign group in short, with its outcome."""

    peer: str
    task: str
    completions: int
    reward_mean: float
    reward_spread: float  # standard deviation
    outcome: str  # "used", "replayed", or a key of ``RoundDone.foreign_rejected``
    detail: str | None = None  # may quote a peer


class ForeignGroups(TimedEvent, frozen=True, kw_only=True, tag="foreign_groups"):
    """The outcomes of the foreign groups that a round decided on, some of its peers and some of its groups as
    ``node.learner.foreign.outcomes`` bounds them. It comes before the round's ``RoundDone``; a round that decided on
    none has no such event."""

    round: int
    by_peer: dict[str, dict[str, int]]  # groups by outcome
    groups: tuple[GroupOutcome, ...]


class Evaluated(TimedEvent, frozen=True, kw_only=True, tag="evaluated"):
    """The weights after this round were measured on held-out prompts (``evaluation.every_rounds``)."""

    round: int  # 0: before the first one; the best is chosen among the others
    policy_version: int
    prompts: int  # of each task, in the test set and in the validation set
    reward: float  # mean over the tasks, on the test set
    reward_by_task: dict[str, float]  # mean of one greedy completion a prompt, on the test set
    validation: float  # mean over the tasks on the validation set, which chooses the best checkpoint
    best_round: int  # of the evaluations on these prompts; its checkpoint is kept
    best_reward: float  # of that checkpoint, on the test set
    seconds: float


class BaselineMeasured(TimedEvent, frozen=True, kw_only=True, tag="baseline"):
    """The weights before the first step, measured as practice measures them: what later rewards are compared with."""

    round: int  # 0
    prompts: int  # of each task, held out
    reward_by_task: dict[str, float]  # mean of one completion a prompt, sampled as in training
    seconds: float


SAMPLE_CHARACTERS = 600  # of a question or an answer
SAMPLE_ANSWERS = 4
SAMPLES_SECONDS = 5.0  # at least, between two events


class SampledAnswer(Struct, frozen=True):
    """One completion, escaped and cut to ``SAMPLE_CHARACTERS``."""

    text: str
    cut: bool
    reward: float


class SampledGroup(Struct, frozen=True):
    """One question with some of its answers, escaped and bounded."""

    peer: str | None  # who wrote the answers; None: we
    task: str
    question: str
    expected: str | None
    answers: tuple[SampledAnswer, ...]
    completions: int
    reward_mean: float


class Samples(TimedEvent, frozen=True, kw_only=True, tag="samples"):
    """What was asked and answered in a round, to be looked at. It is shown and never recorded."""

    round: int
    ours: SampledGroup | None
    learnt_from: SampledGroup | None  # a peer's; None where the round learnt from none


class Averaged(TimedEvent, frozen=True, kw_only=True, tag="averaged"):
    """An offer of our weights to the family has ended, with or without an outer step."""

    round: int  # rounds done when it ended
    partner: str | None  # peer id; None: the weights stay as they were
    because: str  # how it ended, in words; names peers only by their ids
    seconds: float  # from the offer to the end; learning continues meanwhile
    encoding: str = ""  # of what was offered: all of it in bf16, or compressed
    rounds_between: int = 0  # learnt meanwhile, and kept
    sent_bytes: int = 0  # of our weights, as offered
    received_bytes: int = 0  # of the partner's
    weight: float | None = None  # of the partner's weights in the mean, where ours have 1; below 1 if unusually far
    # ‖θ_i − θ_j‖ / ‖θ_i‖ of the weights as offered, before the step. Compressed: of φ, from a sample.
    distance: float | None = None
    outer_steps: int = 0  # in all
    sent_bytes_total: int = 0  # over this learner process's life
    received_bytes_total: int = 0


class AveragingTakenBack(TimedEvent, frozen=True, kw_only=True, tag="averaging_taken_back"):
    """Own success fell after an outer step by more than noise explains: the weights from before it are back."""

    round: int  # that showed it
    partner: str  # peer id; not averaged with for a while
    because: str  # in words
    averaged_round: int  # rounds done when the step was taken
    success_before: float  # mean reward of own groups
    success_change: float
    groups: int  # since the step


class InfluenceWithdrawn(TimedEvent, frozen=True, kw_only=True, tag="influence_withdrawn"):
    """Own success fell after learning from peers, by more than chance does: they teach nothing, or little, for a while.
    A precaution: that is no proof of anything against one of them."""

    round: int  # that showed it
    since_round: int  # with which the fall began
    lost_share: float  # of the usual success, 0 to 1
    peers: tuple[str, ...]  # peer ids
    action: Literal["set_aside", "on_probation"]  # nothing until ``until_round``; little until proven again
    until_round: int  # the first in which all of them may teach again; on probation: until which a fall is watched for
    weights_of_round: int | None  # that were put back; None: they stay


class StatePublished(TimedEvent, frozen=True, kw_only=True, tag="state_published"):
    """The nodes of our family can fetch our weights."""

    round: int
    policy_version: int
    weights: str  # hash of the bf16 weights, hex
    kind: Literal["anchor", "diff"]
    size_bytes: int  # of the added anchor or diff
    diffs: int  # from the anchor to this state
    seconds: float  # spent on a thread of its own


class EngineChanged(TimedEvent, frozen=True, kw_only=True, tag="engine"):
    """Which engine generates: reported at the start, and when one in a process of its own is lost, is back, or is given
    up. No round is lost by it: what was unfinished is generated anew."""

    backend: str  # that generates, or will again: "torch" in the learner's process, the others in one of their own
    configured: str  # what ``engine.backend`` led to
    running: bool
    because: str
    losses: int = 0  # of the engine, since the learner started
    retry_seconds: float | None = None  # until it is started again

    @property
    def is_as_configured(self) -> bool:
        """Whether the engine that was asked for generates."""
        return self.running and self.backend == self.configured


class DonorShare(Struct, frozen=True, kw_only=True):
    """What one donor did in a generation."""

    peer: str
    name: str  # as invited, or as the donor calls itself; shown escaped
    # "preparing" (model or weights are not there yet), "ready" (given nothing), "generated", "lost" or "dropped"
    state: str
    groups: int  # that it was given
    groups_done: int  # of these, complete by it
    tokens: int  # of it that are used
    tokens_per_second: float | None  # while it sampled
    share: float  # of all new tokens
    setup_seconds: float  # until it had the newest weights
    tokens_total: int  # used since the learner started
    because: str  # why it was lost or dropped; shown escaped


class DonorsShared(TimedEvent, frozen=True, kw_only=True, tag="donors"):
    """Who generated a round's groups, where donors were there."""

    groups: int  # launched
    own_groups: int  # of these given to the learner's own engine
    tokens: int
    seconds: float
    donors: tuple[DonorShare, ...]


class StageHeld(Struct, frozen=True, kw_only=True):
    """Layers that the learner does not hold itself, and the machine that holds them."""

    first: int  # counted from 0
    last: int  # not among them
    peer: str  # empty: no machine
    name: str  # as invited, or as the machine calls itself; shown escaped
    because: str  # why the last one was lost; shown escaped; empty while one holds them
    expected_bytes: int  # of memory there, by the plan
    # Of this connection, by the learner:
    sent_bytes: int
    received_bytes: int
    # As the machine says, of this connection: tokens forward through its layers, and what all it did took.
    computed_tokens: int = 0
    computed_seconds: float = 0.0
    # Of the last check that it has passed (``node.stages.checking``); None: it was not checked yet.
    checked_seconds: float | None = None  # Unix time
    off: float = 0.0  # by how much its numbers differed, as a share of what is let pass


class StageAway(Struct, frozen=True):
    """A machine that had layers, or room for some, and is not there. It is waited for, or they are divided without."""

    peer: str
    name: str  # as of ``StageHeld``
    since_seconds: float  # Unix time
    because: str  # shown escaped


class StagesHeld(TimedEvent, frozen=True, kw_only=True, tag="stages"):
    """Which machines hold the model's layers (``policy.stages``): when that changes, and after each round."""

    wanted: int  # machines beside this one
    connected: int
    own_layers: int  # that this machine holds; 0 until there is a plan
    stages: tuple[StageHeld, ...]  # in the order of the layers; none until there is a plan
    waits: str  # what the learner waits for; empty while it waits for no machine
    because: str  # why layers are divided so, or empty
    own_expected_bytes: int = 0  # of memory on this machine, by the plan
    # Of a round of the longest answers, by the plan and the speeds that machines measured when they connected:
    generating_seconds: float = 0.0
    learning_seconds: float = 0.0
    away: tuple[StageAway, ...] = ()  # of those that are missing, as far as they are known


class Fault(TimedEvent, frozen=True, kw_only=True, tag="fault"):
    """Something went wrong; the run continues unless this is ``fatal``."""

    kind: str  # the ``reason`` of the StarlingError, or "checkpoint", "gradient", "prompt_too_long", "scoring",
    # "engine_differs", "environment_differs", "environment_not_shared"
    detail: str
    round: int
    fatal: bool


class OutOfMemory(TimedEvent, frozen=True, kw_only=True, tag="out_of_memory"):
    """Memory ran out in a phase of a round. What the phase had begun was dropped; no round is lost by it."""

    round: int  # under way
    phase: str  # "generate", "learn", "average", "publish", "checkpoint", "offer state"
    # What follows: ``node.learner.memory.decisions``.
    then: Literal["recompute", "halve", "again", "skip", "wait", "give up"]
    detail: str  # of the error
    key: str | None = None  # the setting that was halved: "engine.rows" or "learner.batch_tokens"
    before: int | None = None  # its value
    after: int | None = None
    wait_seconds: float = 0.0  # until the phase is repeated
    total_bytes: int | None = None  # of the device; None where it is a CPU
    free_bytes: int | None = None  # after everything was given back
    others_bytes: int | None = None  # held by other programs


class CheckpointSaved(TimedEvent, frozen=True, kw_only=True, tag="checkpoint"):
    """A whole checkpoint is on disk."""

    round: int
    path: str
    size_bytes: int
    seconds: float


class NotSaved(TimedEvent, frozen=True, kw_only=True, tag="not_saved"):
    """What was learnt since the newest checkpoint is in memory alone, since no checkpoint can be written. It is tried
    again; the next ``CheckpointSaved`` ends this state."""

    round: int  # rounds done
    saved_round: int  # of the newest checkpoint; 0: there is none
    because: str
    retry_seconds: float  # until the next attempt
    ends_in_seconds: float | None = None  # the run has ended and waits this long for room, before it is lost


class DamagedCheckpoint(Struct, frozen=True):
    """A checkpoint that no run can continue from."""

    name: str  # its folder's former name
    because: str
    aside: str  # where it is now; nothing deletes it there. Where it could not be moved: its place


class CheckpointsDamaged(TimedEvent, frozen=True, kw_only=True, tag="checkpoints_damaged"):
    """Checkpoints are damaged and kept aside. Reported before ``LearnerReady``."""

    damaged: tuple[DamagedCheckpoint, ...]  # newest first
    continues_from: int | None  # the round of the newest whole one; None: none is left
    asks_peers: bool  # the weights of peers are asked for


class Stopped(TimedEvent, frozen=True, kw_only=True, tag="stopped"):
    """The learner's last line when it ends on purpose."""

    round: int
    because: str  # "rounds", "tokens", "asked", "paused", "supervisor gone"
    tokens_generated_total: int
    checkpoint: str | None
    lost: NotSaved | None = None  # what could not be saved, if anything


class NamedPeer(Struct, frozen=True):
    """A peer as it calls itself, escaped. None of it is checked."""

    peer: str
    name: str
    model: str


class PeersChanged(TimedEvent, frozen=True, kw_only=True, tag="peers"):
    """Peers came or went. A peer is present while it is connected or its heartbeats are fresh. The supervisor writes it
    among the learner's events; ``node.api.presence`` bounds both lists."""

    round: int  # rounds done
    came: tuple[NamedPeer, ...]
    left: tuple[NamedPeer, ...]
    came_total: int  # those beyond the bound included
    left_total: int
    present: int  # afterwards


class DeviceUsage(Struct, frozen=True):
    """A GPU as its driver reports it, programs of others included. A figure that it does not report is None."""

    name: str
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    utilization_share: float | None  # of the last sampling period in which a kernel ran, 0 to 1
    power_watts: float | None
    power_limit_watts: float | None


class Usage(TimedEvent, frozen=True, kw_only=True, tag="usage"):
    """What the node uses of machine and network. The supervisor writes it among the learner's events. Memory is
    resident memory; None for a process that does not run, or where the system does not report it."""

    supervisor_bytes: int | None
    learner_bytes: int | None  # its scoring workers included
    swarm_bytes: int | None
    sent_bytes_total: int | None  # since the swarm process started; None while it does not answer
    received_bytes_total: int | None
    device: DeviceUsage | None = None  # the GPU that the learner uses; None where it uses none


Event = (
    Loading
    | Planned
    | PhaseBegan
    | ForeignGroups
    | RoundDone
    | Evaluated
    | BaselineMeasured
    | Averaged
    | AveragingTakenBack
    | InfluenceWithdrawn
    | StateSyncing
    | LearnerReady
    | StatePublished
    | CheckpointSaved
    | NotSaved
    | CheckpointsDamaged
    | EngineChanged
    | DonorsShared
    | StagesHeld
    | Fault
    | OutOfMemory
    | Samples
    | Stopped
)

_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_encoder = msgspec.json.Encoder()


def encode_event(event: Event) -> bytes:
    """Returns one line of JSON, without the newline."""
    return _encoder.encode(event)


def decode_event(line: bytes | str) -> Event:
    """Returns the event of a line. Raises ``msgspec.DecodeError`` (``ValidationError`` included) if it holds none."""
    return _decoder.decode(line)


def kind_of(event: Event | PeersChanged | Usage) -> str:
    """Returns the tag of an event's lines, such as "round"."""
    return str(event.__struct_config__.tag)
