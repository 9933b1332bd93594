"""Events of rounds: what was generated, learnt and measured."""

from __future__ import annotations

from msgspec import Struct, field

from node.events.timed import TimedEvent


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
    own_groups: int
    own_groups_informative: int  # with a non-zero advantage
    own_groups_dropped: int = 0  # because all their rewards were equal (learner.resample)
    own_groups_resumed: int = 0  # begun in an earlier round (learner.overprovision)
    own_groups_unfinished: int = 0  # left for later rounds
    staleness_mean: float | None = (
        None  # versions between the oldest token of an own completion and the weights that learn
    )
    staleness_max: int | None = None
    foreign_groups_used: int  # for the first time
    foreign_groups_replayed: int = 0  # used in an earlier round too
    foreign_rejected: dict[str, int]  # candidates and fetched groups not used, by ``ForeignOutcome`` or error
    groups_shared: int
    groups_shared_total: int
    foreign_groups_used_total: int
    tokens_generated: int
    tokens_generated_total: int
    tokens_trained: int  # completion tokens with a non-zero advantage
    tokens_per_second: float  # generated, over the whole round
    bytes_fetched: int
    bytes_fetched_total: int = 0
    foreign_completions: int = 0  # trained on: of foreign groups, those with a non-zero advantage
    foreign_completions_total: int = 0  # each as often as it was trained on
    bytes_per_foreign_completion: float | None = None  # of the totals
    scoring_failures: int
    loss: float | None
    gradient_norm: float | None  # before clipping
    steps_skipped_total: int  # optimizer steps skipped for a non-finite gradient
    effective_sample_share: float | None  # (Σw)² / (n Σw²) over spans
    effective_sequence_share: float | None = None  # VCPO's ESS / B, of completions' untruncated weights
    clip_share: float | None  # spans whose weight was truncated at the cap, or masked out for it
    ratio_clip_share: float | None = None  # tokens without a gradient for their ratio to the proximal policy
    floor_share: float | None  # spans whose weight was raised to the floor
    filter_share: float | None  # completions with a non-zero advantage that a filter or a veto removed
    text_share: float | None = None  # completions learnt from as text, without behaviour log-probabilities
    foreign_unusable: int = 0  # foreign completions with impossible log-probabilities: dropped, or taken as text
    kl: float | None = None  # to the reference, per token, over own completions; None without objective.kl_weight
    multi_token_span_share: float | None  # of foreign spans, those longer than one token on either side
    entropy: float | None  # mean over trained tokens
    divergence_by_peer: dict[str, float]  # mean over trained completions, own ones under "self"
    alone_because: str | None  # None while foreign groups arrive
    foreign_fetched: int = 0  # groups that came over the network
    foreign_waiting: int = 0  # candidates that may be chosen in a later round
    samples_by_task: dict[str, int] = field(default_factory=dict)  # own completions behind ``success_by_task``
    trained_tokens_per_second: float | None = None  # over the whole round
    device_memory_bytes: int | None = None  # the most that torch has reserved on an accelerator; None on a CPU
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
    """The outcomes of the foreign groups that a round decided on. It comes before the round's ``RoundDone``; a round
    that decided on none has no such event.

    ``node.learner.foreign.outcomes`` bounds it: it names some peers, and some of the groups.
    """

    round: int
    by_peer: dict[str, dict[str, int]]  # groups by outcome
    groups: tuple[GroupOutcome, ...]


class Evaluated(TimedEvent, frozen=True, kw_only=True, tag="evaluated"):
    """The weights after this round were measured on held-out prompts (``evaluation.every_rounds``)."""

    round: int
    policy_version: int
    prompts: int  # of each task, in the test set and in the validation set
    reward: float  # mean over the tasks, on the test set
    reward_by_task: dict[str, float]  # mean of one greedy completion a prompt, on the test set
    validation: float  # mean over the tasks on the validation set, which chooses the best checkpoint
    best_round: int  # of the evaluations on these prompts; its checkpoint is kept
    best_reward: float  # of that checkpoint, on the test set
    seconds: float
