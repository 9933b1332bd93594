"""The messages of ``/starling/stage/1``, by which an owner uses a machine that holds some layers of its model.

    owner → requests, several of which may wait;  stage → one answer to each, in their order, and ``StageBeat`` between

Each is one frame of ``protocol.streams.framing``. The tensors that a message describes follow it, one after the other
in the order of its fields, as frames of their bare bytes (little-endian, the last dimension first): each of
``STAGE_PART_BYTES``, the last one of a tensor shorter. A tensor without elements has none. ``docs/protocol.md``
specifies when a stage refuses what.
"""

from __future__ import annotations

import math
from enum import StrEnum
from itertools import chain
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from protocol import limits, wire
from protocol.errors import MalformedError, OversizedError, VersionError
from protocol.messages import Counter, Hash16, Name
from protocol.streams.engine_messages import Count32, Version16

STAGE_PROTOCOL: Final = "/starling/stage/1"
STAGE_MAJOR: Final = 1
STAGE_MINOR: Final = 2
BEAT_SECONDS: Final = 5.0
ELEMENT_BYTES: Final = {"float32": 4, "bfloat16": 2, "int64": 8, "bool": 1}

_BESIDE: Final = {
    "mask": "bool",
    "positions": "int64",
    "prompt_of": "int64",
    "padding": "int64",
}  # all others are numbers

_Layer = Annotated[int, Meta(ge=0, le=limits.STAGE_LAYERS)]
_Batch = Annotated[int, Meta(ge=0, lt=limits.STAGE_BATCHES)]
_Rows = Annotated[tuple[Annotated[int, Meta(ge=0, lt=limits.STAGE_ROWS)], ...], Meta(max_length=limits.STAGE_ROWS)]
_Names = Annotated[
    tuple[Annotated[str, Meta(max_length=limits.STAGE_TENSOR_NAME)], ...], Meta(max_length=limits.STAGE_TENSORS)
]
_Rate = Annotated[float, Meta(ge=0.0, le=1e18)]  # an infinite one would give a machine every layer


class TensorShape(Struct, frozen=True, array_like=True):
    """A tensor that follows its message."""

    dtype: Literal["float32", "bfloat16", "int64", "bool"]
    shape: Annotated[tuple[Count32, ...], Meta(max_length=3)]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


_Shapes = Annotated[tuple[TensorShape, ...], Meta(max_length=limits.STAGE_TENSORS)]


class StageHello(Struct, frozen=True, array_like=True, tag="hello"):
    """The first request. Answered by ``StageWelcome``."""

    major: Version16
    minor: Version16


class ProbeLink(Struct, frozen=True, array_like=True, tag="probe"):
    """Answered by ``StageTensor`` with the same tensor, so that the owner learns what their link carries. Since 1.1."""

    probe: TensorShape


class HoldLayers(Struct, frozen=True, array_like=True, tag="hold"):
    """The stage reads the base weights of the layers from ``first`` to before ``last``, and frees what it held, factors
    and calls among it. Answered by ``StageDone``."""

    first: _Layer
    last: _Layer


class LoadFactors(Struct, frozen=True, array_like=True, tag="load"):
    """The adapter's factors of its layers, all of them. Answered by ``StageDone``."""

    names: _Names
    factors: _Shapes  # float32


class PassForward(Struct, frozen=True, array_like=True, tag="forward"):
    """A call of the learner's pass. Answered by ``StageTensor`` with the hidden states that leave."""

    micro_batch: Counter
    number: Count32  # of the call; 0 is that for the prompts
    train: bool  # it will go back
    recompute: bool
    chunk_tokens: Annotated[int, Meta(ge=1, le=2**32 - 1)] | None
    prompt_columns: Count32
    hidden: TensorShape  # (B, T, D) in the policy's dtype
    mask: TensorShape | None  # (B, S) bool
    positions: TensorShape | None  # (B, T) int64
    prompt_of: TensorShape | None  # (B,) int64; nil in the call for the prompts


class PassBackward(Struct, frozen=True, array_like=True, tag="backward"):
    """The gradient of what a call returned. Answered by ``StageTensor`` with that of what it was given."""

    micro_batch: Counter
    number: Count32
    gradient: TensorShape  # (B, T, D)


class AskGradients(Struct, frozen=True, array_like=True, tag="gradients"):
    """Answered by ``StageGradients``; they begin anew then."""


class ForgetCalls(Struct, frozen=True, array_like=True, tag="forget"):
    """Drops calls that are under way, and gradients. Answered by ``StageDone``."""


class BeginRows(Struct, frozen=True, array_like=True, tag="begin"):
    """Empties a batch of rows that are sampled. Answered by ``StageDone``. Batches are numbered since 1.2."""

    batch: _Batch = 0


class PrefillPrompts(Struct, frozen=True, array_like=True, tag="prefill"):
    """Computes prompts, in place of those that the batch had. Answered by ``StageTensor`` with what leaves."""

    hidden: TensorShape  # (P, L, D)
    padding: TensorShape  # (P,) int64, columns in front of each
    batch: _Batch = 0


class JoinRows(Struct, frozen=True, array_like=True, tag="join"):
    """A row more for each entry, an index into the prompts. Answered by ``StageDone``."""

    which: _Rows
    batch: _Batch = 0


class LeaveRows(Struct, frozen=True, array_like=True, tag="leave"):
    """The batch shrinks to ``rows``: row ``tails[i]`` becomes ``holes[i]``. Answered by ``StageDone``."""

    holes: _Rows
    tails: _Rows
    rows: Annotated[int, Meta(ge=0, le=limits.STAGE_ROWS)]
    batch: _Batch = 0


class StepRows(Struct, frozen=True, array_like=True, tag="step"):
    """One token more for each row of a batch. Answered by ``StageTensor`` with what leaves."""

    hidden: TensorShape  # (n, 1, D)
    batch: _Batch = 0


class ReleaseRows(Struct, frozen=True, array_like=True, tag="release"):
    """Gives back what rows and prompts of all batches take. Answered by ``StageDone``."""


StageRequest = (
    StageHello
    | ProbeLink
    | HoldLayers
    | LoadFactors
    | PassForward
    | PassBackward
    | AskGradients
    | ForgetCalls
    | BeginRows
    | PrefillPrompts
    | JoinRows
    | LeaveRows
    | StepRows
    | ReleaseRows
)


class StageWelcome(Struct, frozen=True, array_like=True, tag="welcome"):
    major: Version16
    minor: Version16
    family: Hash16  # of the model in the stage's own folder, with an adapter as the terms say
    layers: _Layer  # that the whole model has
    width: Count32  # of its hidden states
    memory_bytes: Counter  # that the stage may take in all
    flops_a_second: _Rate  # measured by the stage, as is the next
    bytes_a_second: _Rate


class StageDone(Struct, frozen=True, array_like=True, tag="done"):
    """The request was carried out."""


class StageTensor(Struct, frozen=True, array_like=True, tag="tensor"):
    result: TensorShape


class StageGradients(Struct, frozen=True, array_like=True, tag="sums"):
    """Of each factor that had one."""

    names: _Names
    gradients: _Shapes  # float32


class StageBeat(Struct, frozen=True, array_like=True, tag="beat"):
    """The stage lives: sent every ``BEAT_SECONDS`` from its welcome on, whatever it does."""

    computed_seconds: _Rate  # since the hello
    computed_tokens: Counter  # through its layers, forward


class StageRefused(Struct, frozen=True, array_like=True, tag="refused"):
    """The request was not carried out, and the stage ends the connection."""

    reason: Name  # a ``StageRefusal``, or one that a later minor version adds
    message: Annotated[str, Meta(max_length=limits.ENGINE_REASON_CHARACTERS)]  # for people; shown escaped


StageAnswer = StageWelcome | StageDone | StageTensor | StageGradients | StageBeat | StageRefused


class StageRefusal(StrEnum):
    """Why a stage does not carry out a request."""

    VERSION = "version"  # another major version of this protocol
    MALFORMED = "malformed"  # it does not decode, or cannot follow what came before it
    OVERSIZED = "oversized"  # it breaks a bound
    CONFIGURATION = "configuration"  # the model here does not have these layers, or cannot be read
    MEMORY = "memory"  # memory ran out


def decode_stage_request(raw: bytes) -> StageRequest:
    """The request in the body of a frame. Raises ``OversizedError`` or ``MalformedError``."""
    return _decoded(raw, StageRequest)  # type: ignore[no-any-return]


def decode_stage_answer(raw: bytes) -> StageAnswer:
    """The answer in the body of a frame. Raises ``OversizedError`` or ``MalformedError``."""
    return _decoded(raw, StageAnswer)  # type: ignore[no-any-return]


def shapes_of(message: StageRequest | StageAnswer) -> list[TensorShape]:
    """The tensors that follow a message, in their order."""
    values = (getattr(message, name) for name in message.__struct_fields__)
    each = chain.from_iterable(value if isinstance(value, tuple) else (value,) for value in values)
    return [value for value in each if isinstance(value, TensorShape)]


def check_stage_version(other: StageHello | StageWelcome, least_minor: int = 0) -> None:
    """Raises ``VersionError`` for another major version than ours, or an older one than it takes."""
    if other.major != STAGE_MAJOR or other.minor < least_minor:
        raise VersionError(
            f"{STAGE_PROTOCOL} of version {other.major}.{other.minor}, ours is {STAGE_MAJOR}.{STAGE_MINOR}: install "
            "the same version of starling on both sides"
        )


def _decoded(raw: bytes, kinds: Any) -> Any:
    message = wire.decode(raw, kinds, max_bytes=limits.STAGE_MESSAGE_BYTES)
    size_bytes = sum(each.bytes for each in shapes_of(message))
    if size_bytes > limits.STAGE_TENSOR_BYTES:
        raise OversizedError(f"tensors of {size_bytes} bytes; at most {limits.STAGE_TENSOR_BYTES} may follow a message")
    match message:
        case LoadFactors(names=names, factors=tensors) | StageGradients(names=names, gradients=tensors):
            if len(names) != len(tensors) or len(set(names)) != len(names):
                raise MalformedError(f"{len(tensors)} tensors and {len(set(names))} different names for them")
            if any(each.dtype != "float32" for each in tensors):
                raise MalformedError("factors and their gradients are float32")
        case _:
            for name in message.__struct_fields__:
                found = getattr(message, name)
                wanted = (_BESIDE[name],) if name in _BESIDE else ("float32", "bfloat16")
                if isinstance(found, TensorShape) and found.dtype not in wanted:
                    raise MalformedError(f"{name} in {found.dtype}; it is {' or '.join(wanted)}")
    return message
