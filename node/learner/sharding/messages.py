"""What the learner tells the processes of its other devices, each a line on their standard input: MessagePack, base64.

First comes ``DeviceStart``, then ``DeviceTask`` after ``DeviceTask``. Nobody answers: all do their part in step, over
``torch.distributed``, and a process that cannot ends, which ends all. Both ends are of one installation and on one
machine: nothing is versioned.
"""

from __future__ import annotations

import base64
import errno
from typing import Any, Final, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from node.learner.steps.devices import StepTask

T = TypeVar("T")

RAN_OUT: Final = int(errno.ENOMEM)
"""The exit code of a device's process in which memory ran out; the learner alone reads it."""


class DeviceStart(Struct, frozen=True, kw_only=True):
    """The first line."""

    rank: int
    count: int
    device: str  # as torch names it
    meeting: str  # a file: ``DeviceGroup``
    family: bytes  # of the policy
    policy: dict[str, Any]  # ``PolicySection`` as JSON, with every "auto" decided
    learner: dict[str, Any]  # ``LearnerSection`` likewise
    objective: dict[str, Any]
    log_level: str


class TakeSteps(Struct, frozen=True, tag="steps"):
    """Optimizer steps on a batch."""

    task: StepTask


class BeginSteps(Struct, frozen=True, tag="begin"):
    """Computes the gradient of some groups of a batch; ``TakeSteps`` brings the others."""

    task: StepTask


class DropBegun(Struct, frozen=True, tag="drop"):
    """Drops what ``BeginSteps`` computed."""


class Prepare(Struct, frozen=True, tag="prepare"):
    """Moments are allocated."""


class Gather(Struct, frozen=True, tag="gather"):
    """The rows of one tensor go to the learner. ``name`` is a key of ``sharded_adamw.ShardRows``."""

    name: str


class Put(Struct, frozen=True, tag="put"):
    """Rows of tensors come from the learner, in this order: their names, and shape and dtype of the whole. Once all are
    there they are put in place, as the weights or as the optimizer's state."""

    what: Literal["weights", "state"]
    tensors: tuple[tuple[str, tuple[int, ...], str], ...]


DeviceTask = TakeSteps | BeginSteps | DropBegun | Prepare | Gather | Put


def line_of(message: DeviceStart | DeviceTask) -> bytes:
    return base64.b64encode(msgspec.msgpack.encode(message, enc_hook=_array_parts)) + b"\n"


def message_in(line: bytes, kind: type[T]) -> T:
    return msgspec.msgpack.decode(base64.b64decode(line), type=kind, dec_hook=_array_of)


def _array_parts(array: object) -> tuple[str, bytes]:
    if not isinstance(array, np.ndarray):
        raise NotImplementedError(f"a message cannot hold {type(array).__name__}")
    return array.dtype.str, array.tobytes()


def _array_of(kind: object, parts: tuple[str, bytes]) -> NDArray[Any]:
    return np.frombuffer(parts[1], np.dtype(parts[0]))
