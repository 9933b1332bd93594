"""Messages of ``/starling/stage/1`` with their tensors, over a ``Channel``: the one way in for both ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec
import torch
from torch import Tensor

from node.engines.process.channel import Channel
from protocol import limits
from protocol.errors import MalformedError
from protocol.streams.framing import LENGTH_BYTES
from protocol.streams.stage_messages import StageAnswer, StageRequest, TensorShape, shapes_of

M = TypeVar("M", bound=StageRequest | StageAnswer)

_DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "bool": torch.bool,
}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}


def shape_of(tensor: Tensor) -> TensorShape:
    """Returns how a message describes ``tensor``. Raises ``KeyError`` for a dtype that none has: our own bug."""
    return TensorShape(_NAMES[tensor.dtype], tuple(tensor.shape))  # type: ignore[arg-type]  # a literal


def send_message(
    channel: Channel, message: StageRequest | StageAnswer, tensors: Sequence[Tensor], *, seconds: float | None
) -> int:
    """Sends a message and the tensors that it describes; returns the bytes of all frames. Raises as ``Channel``."""
    if [shape_of(each) for each in tensors] != shapes_of(message):
        raise ValueError(f"these tensors are not those of {message}")
    sent = _send_frame(channel, msgspec.msgpack.encode(message), seconds)
    for tensor in tensors:
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        content = flat.view(torch.uint8).numpy().data
        for at in range(0, len(content), limits.STAGE_PART_BYTES):
            sent += _send_frame(channel, bytes(content[at : at + limits.STAGE_PART_BYTES]), seconds)
    return sent


def receive_message(
    channel: Channel, decode: Callable[[bytes], M], *, seconds: float | None
) -> tuple[M, list[Tensor], int]:
    """Returns the next message, its tensors on the CPU, all numbers finite, and the bytes of all frames. ``seconds``
    are for each frame.

    Raises as ``Channel`` and ``decode``, and ``MalformedError``. What a message claims is bounded by ``decode``, and
    takes memory as it comes.
    """
    body = channel.receive(max_bytes=limits.STAGE_MESSAGE_BYTES, seconds=seconds)
    message, received = decode(body), LENGTH_BYTES + len(body)
    tensors = []
    for shape in shapes_of(message):
        content = bytearray()
        while (left := shape.bytes - len(content)) > 0:
            part = channel.receive(max_bytes=min(left, limits.STAGE_PART_BYTES), seconds=seconds)
            if len(part) < min(left, limits.STAGE_PART_BYTES):
                raise MalformedError(f"{len(part)} bytes where the next {left} of a tensor were to follow")
            content += part
            received += LENGTH_BYTES + len(part)
        tensors.append(_tensor(shape, content))
    return message, tensors, received


def _send_frame(channel: Channel, body: bytes, seconds: float | None) -> int:
    channel.send(body, seconds=seconds)
    return LENGTH_BYTES + len(body)


def _tensor(shape: TensorShape, content: bytearray) -> Tensor:
    dtype = _DTYPES[shape.dtype]
    if not content:
        return torch.empty(shape.shape, dtype=dtype)
    if dtype is torch.bool and max(content) > 1:
        raise MalformedError("a byte of a tensor of truth values that is neither 0 nor 1")
    tensor = torch.frombuffer(content, dtype=dtype).reshape(shape.shape)
    if dtype.is_floating_point and not bool(tensor.isfinite().all()):
        raise MalformedError(f"a tensor of shape {list(shape.shape)} with a number that is not finite")
    return tensor
