"""The messages of ``/starling/engine/1``, by which a learner uses an engine in another process or on another machine.

    client → request;  engine → one answer, in turn

Each is one frame of ``protocol.streams.framing``. A client begins with ``Hello``. Weights follow ``Load`` as
``WeightsPart`` messages, which have no answer of their own. One generation runs at a time: ``Generate`` begins it,
``Poll`` takes what has ended, ``Interrupt`` ends it early. ``protocol.streams.engine_batches`` has what columns hold;
``docs/engines.md`` specifies when an engine refuses what.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from protocol import limits, wire
from protocol.errors import VersionError
from protocol.messages import Counter, Hash16, Hash32, Name

ENGINE_PROTOCOL: Final = "/starling/engine/1"
ENGINE_MAJOR: Final = 1
ENGINE_MINOR: Final = 1

Version16 = Annotated[int, Meta(ge=0, le=2**16 - 1)]
Count32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Temperature = Annotated[float, Meta(ge=0.0, le=limits.ENGINE_TEMPERATURE)]
_Reason = Annotated[str, Meta(max_length=limits.ENGINE_REASON_CHARACTERS)]


class Hello(Struct, frozen=True, array_like=True, tag="hello"):
    """The first request. Answered by ``Welcome``."""

    major: Version16
    minor: Version16


class Load(Struct, frozen=True, array_like=True, tag="load"):
    """New weights as a blob of ``size`` bytes, in the ``WeightsPart`` messages that follow. Answered after the last of
    them, by ``EngineDone`` once the weights are those of ``target``; ``Refused`` means that they are as they were."""

    version: Counter  # that they are called from now on
    target: Hash32  # ``weight_diff.weights_hash`` of the result
    size: Annotated[int, Meta(ge=1, le=limits.BLOB_BYTES)]  # bytes, of a diff or of dense weights


class WeightsPart(Struct, frozen=True, array_like=True, tag="part"):
    """The next bytes of a blob."""

    content: Annotated[bytes, Meta(min_length=1, max_length=limits.ENGINE_PART_BYTES)]


class LoadFile(Struct, frozen=True, array_like=True, tag="load_file"):
    """As ``Load``, from a file that client and engine both see. An engine on another machine refuses it."""

    version: Counter
    target: Hash32
    path: Annotated[str, Meta(min_length=1, max_length=limits.ENGINE_PATH_CHARACTERS)]


class Generate(Struct, frozen=True, array_like=True, tag="generate"):
    """Begins a generation. Answered by ``EngineDone``. The columns are u32 (little-endian), one number for each start,
    and ``prefix_ids`` has all their tokens after each other."""

    temperature: Temperature
    seed: Counter
    rows: Annotated[int, Meta(ge=1, le=limits.ENGINE_COMPLETIONS)]  # sequences at a time, at most
    groups: Annotated[int, Meta(ge=1, le=limits.ENGINE_COMPLETIONS)]
    enough: Count32 | None  # complete groups that suffice; None: all completions
    group_of: bytes  # to which group its completions belong
    completions: bytes  # how many continue it
    limits: bytes  # new tokens that each completion may have
    prefix_lengths: bytes
    prefix_ids: bytes
    converse: bytes = b""  # 1 where completions are conversations, 0 elsewhere; empty where all are single answers


class Poll(Struct, frozen=True, array_like=True, tag="poll"):
    """Answered by ``EngineProgress``: at once where there is something to hand over or the generation has ended,
    otherwise after ``wait_milliseconds``."""

    wait_milliseconds: Annotated[int, Meta(ge=0, le=limits.ENGINE_POLL_MILLISECONDS)]


class Observe(Struct, frozen=True, array_like=True, tag="observe"):
    """What follows actions that were handed over: u32 columns, one number for each conversation, and ``token_ids`` has
    after each other what they read next. Answered by ``EngineDone``."""

    which: bytes
    lengths: bytes
    token_ids: bytes
    limits: bytes  # tokens that the next action may have; 0: nothing follows, and the conversation has ended


class Interrupt(Struct, frozen=True, array_like=True, tag="interrupt"):
    """Ends the generation after the token that is being sampled, if one runs. Answered by ``EngineDone``."""


class Sleep(Struct, frozen=True, array_like=True, tag="sleep"):
    """Gives back memory that can be taken again, keys and values at least. Answered by ``EngineDone``."""


class Wake(Struct, frozen=True, array_like=True, tag="wake"):
    """Ends sleep, where the engine sleeps. Answered by ``EngineDone``."""


class AskHealth(Struct, frozen=True, array_like=True, tag="health"):
    """Answered by ``Health``. ``measure``: the hash is computed from the weights themselves, which reads all of them;
    otherwise it is the hash that was verified when they were loaded."""

    measure: bool


class EndEngine(Struct, frozen=True, array_like=True, tag="stop"):
    """Answered by ``EngineDone``; then the engine ends."""


EngineRequest = (
    Hello | Load | WeightsPart | LoadFile | Generate | Poll | Observe | Interrupt | Sleep | Wake | AskHealth | EndEngine
)


class Welcome(Struct, frozen=True, array_like=True, tag="welcome"):
    major: Version16
    minor: Version16
    backend: Name  # what generates: "torch"
    family: Hash16  # of the model (docs/protocol.md, Fingerprints)
    layout: Hash16  # of its trained weights: ``TensorLayout.digest``
    vocabulary: Count32  # tokens that it may sample
    context: Count32  # positions that the model has
    converses: bool = False  # whether it takes ``Generate.converse``


class EngineDone(Struct, frozen=True, array_like=True, tag="done"):
    """The request was carried out."""


class EngineProgress(Struct, frozen=True, array_like=True, tag="progress"):
    """What has happened in a generation. ``which``, ``lengths`` and ``token_ids`` are u32 columns, ``logps`` float32
    (little-endian): completions that were not handed over before, those of no token left out; of a conversation, each
    action as soon as it has ended."""

    version: Counter  # of the weights that sample
    weights: Hash32  # their hash, as verified when they were loaded
    running: bool
    steps: Counter  # looks at what was sampled: they rise while it goes on
    complete: Count32  # groups whose completions have all ended
    left: Count32  # completions that can be handed over and did not fit into this answer
    which: bytes
    lengths: bytes
    token_ids: bytes
    logps: bytes


class EnginePhase(StrEnum):
    """What an engine does."""

    IDLE = "idle"
    GENERATING = "generating"
    ASLEEP = "asleep"


class Health(Struct, frozen=True, array_like=True, tag="health"):
    version: Counter
    weights: Hash32 | None  # None: none were loaded, and none were measured
    phase: Name  # a ``EnginePhase``, or one that a later minor version adds
    steps: Counter  # of the generation under way, or of the last one


class Refused(Struct, frozen=True, array_like=True, tag="refused"):
    """The request was not carried out."""

    reason: Name  # an ``EngineRefusal``, or one that a later minor version adds
    message: _Reason  # for people; shown escaped


EngineAnswer = Welcome | EngineDone | EngineProgress | Health | Refused


class EngineRefusal(StrEnum):
    """Why an engine does not carry out a request. It is then as it was before."""

    VERSION = "version"  # another major version of this protocol
    MALFORMED = "malformed"  # the request does not decode, or breaks its own bounds; the connection ends
    OVERSIZED = "oversized"  # likewise
    FIRST_HELLO = "first_hello"
    BUSY = "busy"  # a generation runs
    IDLE = "idle"  # there is no generation to poll
    ASLEEP = "asleep"
    NO_WEIGHTS = "no_weights"  # none were loaded yet
    NO_FILES = "no_files"  # it takes no files, or not this one
    REQUEST = "request"  # tokens that the model does not have, or what follows an action that was not handed over
    CONFIGURATION = "configuration"  # a prompt that leaves no room in the model's context
    MEMORY = "memory"  # memory ran out: fewer rows need less
    STALE_BASE = "stale_base"  # a diff from other weights than the engine holds
    INTEGRITY = "integrity"  # the blob is damaged, of another layout, or leads to other weights than it says


def decode_engine_request(raw: bytes) -> EngineRequest:
    """The request in the body of a frame. Raises ``OversizedError`` or ``MalformedError``."""
    return _decoded(raw, EngineRequest, limits.ENGINE_REQUEST_BYTES)  # type: ignore[no-any-return]


def decode_engine_answer(raw: bytes) -> EngineAnswer:
    """The answer in the body of a frame. Raises ``OversizedError`` or ``MalformedError``."""
    return _decoded(raw, EngineAnswer, limits.ENGINE_ANSWER_BYTES)  # type: ignore[no-any-return]


def check_engine_version(other: Hello | Welcome) -> None:
    """Raises ``VersionError`` for another major version than ours."""
    if other.major != ENGINE_MAJOR:
        raise VersionError(
            f"{ENGINE_PROTOCOL} of version {other.major}.{other.minor}, ours is {ENGINE_MAJOR}.{ENGINE_MINOR}: install "
            "the same version of starling on both sides"
        )


def _decoded(raw: bytes, kinds: Any, max_bytes: int) -> Any:
    return wire.decode(raw, kinds, max_bytes=max_bytes)
