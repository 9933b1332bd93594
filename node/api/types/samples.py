"""A question of a recent round with its answers."""

from __future__ import annotations

from msgspec import Struct


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
