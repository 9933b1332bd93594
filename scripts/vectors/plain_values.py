"""Values of the protocol in terms of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec
import numpy as np

from protocol.streams.framing import framed_message

SEED = bytes(range(32))
SWARM_ID = bytes(range(0xA0, 0xB0))
FAMILY = b"family__________"

EXACT = 2**53 - 1

Json = dict[str, Any]


def plain(value: Any) -> Any:
    """A value of the protocol in terms of JSON: byte strings as hexadecimal, structs as objects.

    Integers beyond ``EXACT`` are decimal strings: many readers of JSON have floats alone, which cannot hold them.
    """
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int) and not -EXACT <= value <= EXACT:
        return str(value)
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value.tolist()]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def vectors_of_sides(requests: Mapping[str, msgspec.Struct], answers: Mapping[str, msgspec.Struct]) -> list[Json]:
    """The messages of both sides of a protocol, by name, as fields and as frames."""
    return [
        {
            "name": name,
            "kind": f"{side} {message.__struct_config__.tag}",
            "fields": plain(message),
            "frame": framed_message(message).hex(),
        }
        for side, named in (("request", requests), ("answer", answers))
        for name, message in named.items()
    ]


def pattern(size_bytes: int) -> bytes:
    """The content of the blob vectors: byte i is i modulo 251."""
    period = bytes(range(251))
    return (period * (size_bytes // 251 + 1))[:size_bytes]
