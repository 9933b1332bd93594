"""What the learner process tells the supervisor: one JSON object a line on its standard output, tagged by ``event``.

The supervisor writes these lines to ``metrics.jsonl`` as they are and keeps the newest of each kind for the API. A
number that does not exist (a loss in a round without an optimizer step) is null, never NaN. Imports no torch.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

STOP_LINE = "stop"  # on the learner's standard input: finish the step, checkpoint, exit 0; end of file means the same


class Start(Struct, frozen=True):
    """The first line on the learner's standard input."""

    home: str  # the data directory: HOME/checkpoints, HOME/swarm.sock
    config: dict[str, Any]  # ``Config.model_dump(mode="json")``, resolved


class _Event(Struct, frozen=True, kw_only=True, tag_field="event"):
    time_seconds: float  # Unix time by our clock


class Loading(_Event, frozen=True, kw_only=True, tag="loading"):
    """What the learner is busy with before its first round."""

    what: str  # "policy", "tasks", "engine", "checkpoint"
    seconds: float  # since the process started


class Ready(_Event, frozen=True, kw_only=True, tag="ready"):
    """Everything is loaded; the first round begins."""

    model: str
    family: str  # hex
    tokenizer: str  # hex
    parameters: int
    trainable_parameters: int
    device: str
    dtype: str
    tasks: tuple[str, ...]
    round: int  # rounds already done
    checkpoint: str | None  # path it continues from
    seconds: float  # since the process started


class Phases(Struct, frozen=True, kw_only=True):
    """Seconds of one round by what they were spent on."""

    allocate: float
    generate: float
    collect: float  # waiting for foreign groups after generation ended
    score: float
    learn: float
    publish: float  # new weights to the engine, own groups to the swarm


class RoundDone(_Event, frozen=True, kw_only=True, tag="round"):
    """One round, done. Shares are 0 to 1; log-probabilities and entropies in nats."""

    round: int  # rounds done, this one included
    policy_version: int
    seconds: float
    phases: Phases
    reward: float  # mean over own completions
    reward_by_task: dict[str, float]  # own groups of this round
    completions_by_task: dict[str, int] = {}  # of own groups: what was allocated
    success_by_task: dict[str, float]  # running, V_θ
    own_groups: int
    own_groups_informative: int  # with a non-zero advantage
    own_groups_dropped: int = 0  # for all their rewards were equal (learner.resample)
    own_groups_resumed: int = 0  # begun in an earlier round (learner.overprovision)
    own_groups_unfinished: int = 0  # left for later rounds
    staleness_mean: float | None = None  # versions from the oldest token of an own completion to the weights that learn
    staleness_max: int | None = None
    foreign_groups_used: int  # for the first time
    foreign_groups_replayed: int = 0  # used in an earlier round too
    foreign_rejected: dict[str, int]  # candidates and fetched groups not used, by reason
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
    filter_share: float | None  # completions with a non-zero advantage that a filter or a veto took out
    text_share: float | None = None  # completions learnt from as text, without behaviour log-probabilities
    foreign_unusable: int = 0  # foreign completions whose log-probabilities cannot be: dropped, or taken as text
    kl: float | None = None  # to the reference, a token, over own completions; None without objective.kl_weight
    multi_token_span_share: float | None  # of foreign spans, those longer than one token on either side
    entropy: float | None  # mean over trained tokens
    divergence_by_peer: dict[str, float]  # mean over trained completions, own ones under "self"
    alone_because: str | None  # None while foreign groups can be had


class CheckpointSaved(_Event, frozen=True, kw_only=True, tag="checkpoint"):
    """A whole checkpoint lies on disk."""

    round: int
    path: str
    size_bytes: int
    seconds: float


class Fault(_Event, frozen=True, kw_only=True, tag="fault"):
    """Something went wrong and the run goes on, unless ``fatal``."""

    kind: str  # the ``reason`` of the StarlingError, or "checkpoint", "gradient"
    detail: str
    round: int
    fatal: bool


class Stopped(_Event, frozen=True, kw_only=True, tag="stopped"):
    """The learner's last line when it ends on purpose."""

    round: int
    because: str  # "rounds", "tokens", "asked", "supervisor gone"
    tokens_generated_total: int
    checkpoint: str | None


Event = Loading | Ready | RoundDone | CheckpointSaved | Fault | Stopped

_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_encoder = msgspec.json.Encoder()


def encode_event(event: Event) -> bytes:
    """One line of JSON, without the newline."""
    return _encoder.encode(event)


def decode_event(line: bytes | str) -> Event:
    """Raises ``msgspec.DecodeError`` (``ValidationError`` included) for a line that is no event."""
    return _decoder.decode(line)


def kind_of(event: Event) -> str:
    """The tag of an event's lines, such as "round"."""
    return str(event.__struct_config__.tag)
