"""Announcements: small, signed, gossiped. Each is a frozen struct, encoded as a positional MessagePack array.

A newer minor version may append fields at the end of a struct; an older reader ignores them. Fields are never removed,
reordered or given another meaning within a major version. ``docs/protocol.md`` specifies the bytes.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from protocol import limits

Name = Annotated[str, Meta(max_length=limits.NAME_BYTES)]
Hash16 = Annotated[bytes, Meta(min_length=16, max_length=16)]  # truncated SHA-256: family, tokenizer, configuration
Hash32 = Annotated[bytes, Meta(min_length=32, max_length=32)]  # a blob's id
TaskVersion = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Counter = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Success = Annotated[float, Meta(ge=0.0, le=1.0)]
CATCHING_UP = "catching up"  # phase of a heartbeat that asks those of its family to announce their states now
Reward = Annotated[float, Meta(ge=-limits.REWARD_MAGNITUDE, le=limits.REWARD_MAGNITUDE)]


class PromptRef(Struct, frozen=True, array_like=True):
    """A prompt by reference: the receiver regenerates question and answer itself, from a task that it already has.

    No parameter of the generator travels, only the hash of a configuration that the receiver knows, so that a stranger
    can ask nobody for a question of a gigabyte.
    """

    task: Name
    version: TaskVersion
    config_hash: Hash16
    seed: Counter


class GroupAdvert(Struct, frozen=True, array_like=True):
    """What lets a receiver choose a rollout group without fetching it. Tuples run over the group's completions."""

    blob: Hash32
    size: Annotated[int, Meta(ge=1, le=limits.GROUP_BLOB_BYTES)]  # bytes of the blob
    prompt: PromptRef
    rewards: Annotated[tuple[Reward, ...], Meta(min_length=1, max_length=limits.COMPLETIONS_PER_GROUP)]
    lengths: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=limits.COMPLETION_TOKENS)], ...],
        Meta(min_length=1, max_length=limits.COMPLETIONS_PER_GROUP),
    ]
    mean_logps: Annotated[
        tuple[Annotated[float, Meta(ge=-1e4, le=0.0)], ...],
        Meta(min_length=1, max_length=limits.COMPLETIONS_PER_GROUP),
    ]


class RolloutAdvert(Struct, frozen=True, array_like=True, tag="rollouts"):
    """The groups that one node shares from one round, in one announcement."""

    family: Hash16
    tokenizer: Hash16
    policy_version: Counter
    groups: Annotated[tuple[GroupAdvert, ...], Meta(min_length=1, max_length=limits.GROUPS_PER_ADVERT)]


class TaskSuccess(Struct, frozen=True, array_like=True):
    """A node's own running success on one task."""

    task: Name
    success: Success
    samples: Counter


class Heartbeat(Struct, frozen=True, array_like=True, tag="heartbeat"):
    """What a node tells of itself, every few seconds."""

    name: Name
    software: Name
    model: Name
    family: Hash16
    tokenizer: Hash16
    round: Counter
    policy_version: Counter
    phase: Name
    tokens_per_second: Annotated[float, Meta(ge=0.0, le=1e12)]
    groups_shared: Counter
    groups_used: Counter
    tasks: Annotated[tuple[TaskSuccess, ...], Meta(max_length=limits.TASKS_PER_HEARTBEAT)]


class StateBlob(Struct, frozen=True, array_like=True):
    """A blob, and the weights that it leads to."""

    blob: Hash32
    size: Annotated[int, Meta(ge=1, le=limits.BLOB_BYTES)]
    weights: Hash32  # weights hash, as ``weight_diff`` defines it


class StateAdvert(Struct, frozen=True, array_like=True, tag="state"):
    """Weights that whoever joins or returns may start from: an anchor, and the diffs that lead on from it.

    ``tasks`` is what the sender measured of these weights itself; empty where it passes on what it took from others.
    """

    family: Hash16
    layout: Hash16  # digest of the trained tensors' names and shapes
    policy_version: Counter
    outer_step: Counter  # averagings with others that it has behind it
    tasks: Annotated[tuple[TaskSuccess, ...], Meta(max_length=limits.TASKS_PER_HEARTBEAT)]
    anchor: StateBlob  # dense weights
    diffs: Annotated[tuple[StateBlob, ...], Meta(max_length=limits.STATE_DIFFS)]  # each from the one before

    @property
    def blobs(self) -> tuple[StateBlob, ...]:
        """All that is needed, in the order of use."""
        return (self.anchor, *self.diffs)

    @property
    def target(self) -> bytes:
        """Weights hash of the announced state."""
        return self.blobs[-1].weights


class Goodbye(Struct, frozen=True, array_like=True, tag="goodbye"):
    """The sender is leaving on purpose; nobody needs to wait for it."""

    reason: Annotated[str, Meta(max_length=limits.REASON_BYTES)]


Body = Heartbeat | RolloutAdvert | StateAdvert | Goodbye


class Announcement(Struct, frozen=True):
    """A verified announcement, as everything behind ``wire.open_announcement`` sees it."""

    sender: str  # libp2p peer id, base58
    sequence: int
    time_seconds: float  # the sender's clock, Unix time
    body: Body
