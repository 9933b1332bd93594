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
CATCHING_UP = "catching up"  # phase of a heartbeat that asks nodes of its family to announce their states now
RELAYING = "relay"  # phase of a heartbeat, with no model: a peer that introduces and relays, and trains nothing
Reward = Annotated[float, Meta(ge=-limits.REWARD_MAGNITUDE, le=limits.REWARD_MAGNITUDE)]


class PromptRef(Struct, frozen=True, array_like=True):
    """A prompt by reference: the receiver generates question and answer itself, from a task that it already has.

    The reference holds the hash of a configuration that the receiver knows, and no parameter of the generator, so that
    no stranger can make a receiver generate a question of a gigabyte.
    """

    task: Name
    version: TaskVersion
    config_hash: Hash16
    seed: Counter


class GroupAdvert(Struct, frozen=True, array_like=True):
    """What a receiver needs to choose a rollout group without fetching it. Tuples have one entry a completion."""

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
    """What a node reports of itself, every few seconds."""

    name: Name
    software: Name
    model: Name
    family: Hash16
    tokenizer: Hash16
    round: Counter
    policy_version: Counter
    phase: Name
    tokens_per_second: Annotated[float, Meta(ge=0.0, le=1e12)]
    groups_offered: Counter
    groups_used: Counter
    tasks: Annotated[tuple[TaskSuccess, ...], Meta(max_length=limits.TASKS_PER_HEARTBEAT)]
    # The peers to which it is connected, only for pictures: ``protocol.connections``. Since minor version 1.
    connected: Annotated[bytes, Meta(max_length=limits.CONNECTIONS_BYTES)] = b""
    # Where it can be dialled: multiaddrs without the sender's own /p2p/<peer id> at the end. Since minor version 2.
    addresses: Annotated[
        tuple[Annotated[str, Meta(max_length=limits.ADDRESS_CHARACTERS)], ...],
        Meta(max_length=limits.ADDRESSES_PER_HEARTBEAT),
    ] = ()


class StateBlob(Struct, frozen=True, array_like=True):
    """A blob, and the weights that it holds or leads to."""

    blob: Hash32
    size: Annotated[int, Meta(ge=1, le=limits.BLOB_BYTES)]
    weights: Hash32  # weights hash, as ``weight_diff`` defines it


class StateAdvert(Struct, frozen=True, array_like=True, tag="state"):
    """Weights from which a node that joins or returns may start: an anchor, and the diffs that follow it.

    ``tasks`` is what the sender itself measured of these weights; it is empty if the sender took them from others.
    """

    family: Hash16
    layout: Hash16  # digest of the trained tensors' names and shapes
    policy_version: Counter
    outer_step: Counter  # averagings with others that led to these weights
    tasks: Annotated[tuple[TaskSuccess, ...], Meta(max_length=limits.TASKS_PER_HEARTBEAT)]
    anchor: StateBlob  # dense weights
    diffs: Annotated[tuple[StateBlob, ...], Meta(max_length=limits.STATE_DIFFS)]  # each from the one before

    @property
    def blobs(self) -> tuple[StateBlob, ...]:
        """All blobs that are needed, in the order of use."""
        return (self.anchor, *self.diffs)

    @property
    def target(self) -> bytes:
        """Weights hash of the announced state."""
        return self.blobs[-1].weights


class Goodbye(Struct, frozen=True, array_like=True, tag="goodbye"):
    """The sender leaves on purpose; no peer needs to wait for it."""

    reason: Annotated[str, Meta(max_length=limits.REASON_BYTES)]


Body = Heartbeat | RolloutAdvert | StateAdvert | Goodbye


class Announcement(Struct, frozen=True):
    """A verified announcement, as ``wire.open_announcement`` returns it."""

    sender: str  # libp2p peer id, base58
    sequence: int
    time_seconds: float  # the sender's clock, Unix time
    body: Body
