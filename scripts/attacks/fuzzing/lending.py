"""Targets of fuzzing: what a donor and its owner send each other before the engine's protocol, and invitations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from protocol import base58, limits
from protocol.donor_invitation import DONOR_SCHEME, DonorInvitation, _check, decode_donor_invitation
from protocol.streams.framing import LENGTH_BYTES
from protocol.streams.lend_messages import (
    LendHello,
    LendRefused,
    LendTerms,
    decode_lend_answer,
    decode_lend_hello,
)
from scripts.attacks.fuzzing.extremes import encoded
from scripts.attacks.fuzzing.targets import Target, all_of, direct
from scripts.vectors.lend_vectors import donor_invitations, lend_messages

MOST_BYTES = 2000  # of an invitation: base58 takes time in the square of it


def lending_targets() -> list[Target]:
    frames = [bytes.fromhex(vector["frame"])[LENGTH_BYTES:] for vector in lend_messages()]
    bodies = [_body(vector["text"]) for vector in donor_invitations()]
    return [
        Target("message of lending", direct(_message), frames, 8, _made_message, 4),
        Target("donor's invitation", _invitation, bodies, 0.1, _made_invitation, 0.05),
    ]


def _message(raw: bytes) -> None:
    all_of(lambda: decode_lend_hello(raw), lambda: decode_lend_answer(raw))


def _made_message(random: Random) -> bytes:
    return encoded(random, random.choice((LendHello, LendTerms, LendRefused)), limits.LEND_MESSAGE_BYTES)


def _body(text: str) -> bytes:
    return base58.to_bytes(text[len(DONOR_SCHEME) + 1 :])[:-4]


def _invitation(body: bytes) -> Callable[[], object]:
    return partial(decode_donor_invitation, DONOR_SCHEME + "1" + base58.to_text(body + _check(body)))


def _made_invitation(random: Random) -> bytes:
    return encoded(random, DonorInvitation, MOST_BYTES)
