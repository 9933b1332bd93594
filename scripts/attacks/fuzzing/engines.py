"""Targets of fuzzing: what a learner and an engine in another process send each other, or an owner and a machine that
holds layers, a donor and its owner before that, and a donor's invitation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import get_args

from protocol import base58, limits
from protocol.donor_invitation import DONOR_SCHEME, DonorInvitation, _check, decode_donor_invitation
from protocol.streams.engine_batches import Received, opened_batch, opened_observations
from protocol.streams.engine_messages import (
    EngineAnswer,
    EngineProgress,
    EngineRequest,
    Generate,
    Observe,
    decode_engine_answer,
    decode_engine_request,
)
from protocol.streams.framing import LENGTH_BYTES
from protocol.streams.lend_messages import LendHello, LendRefused, LendTerms, decode_lend_answer, decode_lend_hello
from protocol.streams.stage_messages import StageAnswer, StageRequest, decode_stage_answer, decode_stage_request
from scripts.attacks.fuzzing.extremes import encoded
from scripts.attacks.fuzzing.targets import Make, Target, all_of, direct
from scripts.vectors.engine_vectors import BATCH, engine_messages
from scripts.vectors.lend_vectors import donor_invitations, lend_messages
from scripts.vectors.stage_vectors import stage_messages

MOST_BYTES = 1 << 16  # of one input
MOST_INVITATION_BYTES = 2000  # base58 takes time in the square of it


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
    elif isinstance(request, Observe):
        opened_observations(request)


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


def lending_targets() -> list[Target]:
    frames = [bytes.fromhex(vector["frame"])[LENGTH_BYTES:] for vector in lend_messages()]
    bodies = [_body(vector["text"]) for vector in donor_invitations()]
    staged = [bytes.fromhex(vector["frame"])[LENGTH_BYTES:] for vector in stage_messages()]
    return [
        Target("message of a stage", direct(_stage_message), staged, 8, _made(StageRequest | StageAnswer), 4),
        Target("message of lending", direct(_message), frames, 8, _made_message, 4),
        Target("donor's invitation", _invitation, bodies, 0.1, _made_invitation, 0.05),
    ]


def _message(raw: bytes) -> None:
    all_of(lambda: decode_lend_hello(raw), lambda: decode_lend_answer(raw))


def _stage_message(raw: bytes) -> None:
    all_of(lambda: decode_stage_request(raw), lambda: decode_stage_answer(raw))


def _made_message(random: Random) -> bytes:
    return encoded(random, random.choice((LendHello, LendTerms, LendRefused)), limits.LEND_MESSAGE_BYTES)


def _body(text: str) -> bytes:
    return base58.to_bytes(text[len(DONOR_SCHEME) + 1 :])[:-4]


def _invitation(body: bytes) -> Callable[[], object]:
    return partial(decode_donor_invitation, DONOR_SCHEME + "1" + base58.to_text(body + _check(body)))


def _made_invitation(random: Random) -> bytes:
    return encoded(random, DonorInvitation, MOST_INVITATION_BYTES)
