"""What this node can do, what it has from whom, and what it lost."""

from __future__ import annotations

from msgspec import Struct


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
    first: float  # in its first round
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
    error: float = 0.0  # of mean_now - mean_before by chance, one standard deviation
    averagings: int = 0  # of weights with peers: what they brought is in the figures
    started_from_peers: bool = False  # a start took over weights of peers
