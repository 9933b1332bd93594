"""What was asked and answered in a round, to be looked at. It is shown and never recorded."""

from __future__ import annotations

from msgspec import Struct

from node.events.timed import TimedEvent

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
