"""Targets of fuzzing: what a learner and an engine in another process send each other."""

from __future__ import annotations

from random import Random
from typing import get_args

from protocol import limits
from protocol.streams.engine_batches import Received, opened_batch
from protocol.streams.engine_messages import (
    EngineAnswer,
    EngineProgress,
    EngineRequest,
    Generate,
    decode_engine_answer,
    decode_engine_request,
)
from protocol.streams.framing import LENGTH_BYTES
from scripts.attacks.fuzzing.extremes import encoded
from scripts.attacks.fuzzing.targets import Make, Target, direct
from scripts.vectors.engine_vectors import BATCH, engine_messages

MOST_BYTES = 1 << 16  # of one input


def engine_targets() -> list[Target]:
    sound: dict[str, list[bytes]] = {"request": [], "answer": []}
    for vector in engine_messages():
        sound[vector["kind"].split()[0]].append(bytes.fromhex(vector["frame"])[LENGTH_BYTES:])
    return [
        Target("request to an engine", direct(_request), sound["request"], 12, _made(EngineRequest), 4),
        Target("answer of an engine", direct(_answer), sound["answer"], 12, _made(EngineAnswer), 4),
    ]


def _request(raw: bytes) -> None:
    request = decode_engine_request(raw)
    if isinstance(request, Generate):
        assert len(opened_batch(request).owners) <= limits.ENGINE_COMPLETIONS


def _answer(raw: bytes) -> None:
    answer = decode_engine_answer(raw)
    if isinstance(answer, EngineProgress):
        received = Received(BATCH, vocabulary=40, end_ids=(1,))
        received.take(answer)
        received.all(interrupted=False)


def _made(kinds: object) -> Make:
    def make(random: Random) -> bytes:
        return encoded(random, random.choice(get_args(kinds)), MOST_BYTES)

    return make
