"""What became of rollout groups."""

from __future__ import annotations

from msgspec import Struct


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
