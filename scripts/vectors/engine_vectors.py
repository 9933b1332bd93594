"""Messages of ``/starling/engine/1``, as fields and as frames, and requests that must be refused."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from protocol import limits
from protocol.streams import engine_messages as messages
from protocol.streams.engine_batches import (
    Observation,
    SamplingBatch,
    Start,
    generate_message,
    observe_message,
    progress_message,
)
from protocol.streams.engine_messages import EnginePhase, EngineRefusal
from protocol.streams.framing import framed, framed_message
from scripts.vectors.plain_values import FAMILY, Json, pattern, vectors_of_sides

TARGET: Final = bytes(range(32))
BATCH: Final = SamplingBatch(
    starts=(Start(0, (5, 6, 7), 2, 24), Start(2, (5, 6, 7, 9, 11), 1, 22, converses=True)),
    groups=3,
    temperature=1.0,
    seed=2**62 + 1,
    rows=128,
    enough=2,
)


def engine_messages() -> list[Json]:
    """Every request and every answer."""
    sampled = [
        (0, (np.array([8, 1]), np.array([-0.5, -2.25], np.float32))),
        (2, (np.array([12]), np.array([0.0], np.float32))),
    ]
    progress = progress_message(sampled, version=7, weights=TARGET, running=False, steps=2, complete=1, left=1)
    requests = {
        "hello": messages.Hello(messages.ENGINE_MAJOR, messages.ENGINE_MINOR),
        "load": messages.Load(2**63 - 1, TARGET, limits.BLOB_BYTES),
        "part": messages.WeightsPart(pattern(300)),
        "load from a file": messages.LoadFile(7, TARGET, "/home/ann/…/engine/weights"),
        "generate": generate_message(BATCH),
        "poll": messages.Poll(1000),
        "observe": observe_message([Observation(2, (14, 3), 20), Observation(0, (), 0)]),
        "interrupt": messages.Interrupt(),
        "sleep": messages.Sleep(),
        "wake": messages.Wake(),
        "health": messages.AskHealth(True),
        "stop": messages.EndEngine(),
    }
    answers = {
        "welcome": messages.Welcome(1, 1, "torch", FAMILY, b"\x22" * 16, 40, 96, converses=True),
        "done": messages.EngineDone(),
        "progress": progress,
        "health of a new engine": messages.Health(0, None, EnginePhase.IDLE, 0),
        "health": messages.Health(7, TARGET, EnginePhase.ASLEEP, 31),
        **{f"refused: {reason}": messages.Refused(reason, "½ of it") for reason in EngineRefusal},
    }
    return vectors_of_sides(requests, answers)


def refused_engine_requests() -> dict[tuple[str, str, str], bytes]:
    """Frames that must be refused, by protocol, what was expected, and a name that begins with the reason."""

    def generate(**changes: Any) -> bytes:
        return framed_message(msgspec.structs.replace(generate_message(BATCH), **changes))

    def packed(*value: object) -> bytes:
        return framed(msgspec.msgpack.encode(value))

    one = (1).to_bytes(4, "little")
    many = (limits.ENGINE_COMPLETIONS).to_bytes(4, "little")
    cases = {
        "oversized: its length": (limits.ENGINE_REQUEST_BYTES + 1).to_bytes(4, "big"),
        "malformed: an unknown request": packed("sing"),
        "malformed: weights of no size": packed("load", 1, TARGET, 0),
        "malformed: a hash of 31 bytes": packed("load", 1, TARGET[1:], 9),
        "malformed: a part of no bytes": packed("part", b""),
        "malformed: a poll that waits too long": packed("poll", limits.ENGINE_POLL_MILLISECONDS + 1),
        "malformed: a temperature that is not finite": packed("generate", float("nan"), 1, 1, 1, None, *[one] * 5),
        "malformed: columns of unequal length": generate(limits=one),
        "malformed: a column of 3 bytes": generate(group_of=b"abc"),
        "malformed: tokens that belong to no start": generate(prefix_ids=one * 9),
        "malformed: a group beyond the last": generate(groups=2),
        "malformed: a start without tokens": generate(prefix_lengths=bytes(4) + (8).to_bytes(4, "little")),
        "malformed: a completion without room": generate(limits=one + bytes(4)),
        "malformed: a conversation that is neither 0 nor 1": generate(converse=one + b"\2\0\0\0"),
        "malformed: what follows actions, in columns of unequal length": packed("observe", one, one, one, b""),
        "oversized: an action that is too long": packed("observe", one, bytes(4), b"", b"\xff" * 4),
        "malformed: a token id over the bound": generate(prefix_ids=b"\xff" * 32),
        "oversized: too many completions": generate(completions=many + one),
        "oversized: completions that are too long": generate(limits=one + b"\xff" * 4),
    }
    return {("engines", "any", name): frame for name, frame in cases.items()}
