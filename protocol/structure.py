"""Checks the bytes of a MessagePack message before anything is built from them.

Bytes that pass ``check_structure`` hold one value and nothing after it; containers are nested at most
``limits.NESTING_DEPTH`` deep; there are at most ``limits.MESSAGE_VALUES`` values; every length is covered by the bytes
that follow; there is no extension type; every float is finite. Time grows with the number of values, memory with the
nesting alone; nothing recurses.
"""

from __future__ import annotations

import math
import struct
from typing import Final

from protocol import limits
from protocol.errors import MalformedError, OversizedError

_FIXED_BYTES: Final = {  # first byte → bytes that follow it
    **dict.fromkeys(range(0x80), 0),  # small positive integer
    **dict.fromkeys(range(0xE0, 0x100), 0),  # small negative integer
    **{0xA0 + length: length for length in range(32)},  # short string
    **dict.fromkeys((0xC0, 0xC2, 0xC3), 0),  # nil, false, true
    **dict.fromkeys((0xCC, 0xD0), 1),  # integers of 8 bits, …
    **dict.fromkeys((0xCD, 0xD1), 2),
    **dict.fromkeys((0xCE, 0xD2), 4),
    **dict.fromkeys((0xCF, 0xD3), 8),
}
_FLOATS: Final = {0xCA: struct.Struct(">f"), 0xCB: struct.Struct(">d")}
_LENGTH_BYTES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # bin and str: bytes of the length field
_COUNT_BYTES: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}  # array, map: … and values per entry


def check_structure(raw: bytes) -> None:
    """Raises ``MalformedError`` or ``OversizedError`` unless ``raw`` keeps every bound of this module."""
    position = 0
    values = 0
    waiting = [1]  # values still to come, in each open container
    while waiting:
        if not waiting[-1]:
            waiting.pop()
            continue
        waiting[-1] -= 1
        values += 1
        if values > limits.MESSAGE_VALUES:
            raise OversizedError(f"more than {limits.MESSAGE_VALUES} values in one message")
        if position >= len(raw):
            raise MalformedError(f"ends within a value, after {len(raw)} bytes")
        entries, position = _step(raw, position)
        if entries > len(raw) - position:
            raise MalformedError(f"a container claims {entries} values with {len(raw) - position} bytes left")
        if entries >= 0:
            waiting.append(entries)
            if len(waiting) - 1 > limits.NESTING_DEPTH:
                raise OversizedError(f"nested deeper than {limits.NESTING_DEPTH}")
    if position != len(raw):
        raise MalformedError(f"{len(raw) - position} bytes after the end of the message")


def first_values(raw: bytes, count: int) -> bytes:
    """Returns an array of the first ``count`` values of the array in ``raw``, at most 15, and reads none after them.

    Raises ``MalformedError`` if there are fewer, or if one of them is itself an array or a map.
    """
    entries, position = _step(raw, 0) if raw else (-1, 0)
    if entries < count or not _is_array(raw[0]):
        raise MalformedError(f"an array of at least {count} values is needed")
    begin = position
    for _ in range(count):
        if position >= len(raw):
            raise MalformedError(f"ends within a value, after {len(raw)} bytes")
        entries, position = _step(raw, position)
        if entries >= 0:
            raise MalformedError("a container where a value is needed")
    return bytes([0x90 + count]) + raw[begin:position]


def _is_array(first: int) -> bool:
    return 0x90 <= first <= 0x9F or first in (0xDC, 0xDD)


def _step(raw: bytes, position: int) -> tuple[int, int]:
    """Reads one value, or one container's header. Returns the number of values in the container, -1 if there is none,
    and the next position."""
    first = raw[position]
    position += 1
    length = _FIXED_BYTES.get(first)
    if length is not None:
        return -1, _skip(raw, position, length)
    if 0x80 <= first <= 0x8F:
        return 2 * (first - 0x80), position
    if 0x90 <= first <= 0x9F:
        return first - 0x90, position
    if first in _FLOATS:
        layout = _FLOATS[first]
        end = _skip(raw, position, layout.size)
        if not math.isfinite(layout.unpack_from(raw, position)[0]):
            raise MalformedError("a number that is not finite")
        return -1, end
    if first in _LENGTH_BYTES:
        end = _skip(raw, position, _LENGTH_BYTES[first])
        return -1, _skip(raw, end, int.from_bytes(raw[position:end], "big"))
    if first in _COUNT_BYTES:
        width, values_per_entry = _COUNT_BYTES[first]
        end = _skip(raw, position, width)
        return values_per_entry * int.from_bytes(raw[position:end], "big"), end
    raise MalformedError(f"byte 0x{first:02x}: an extension type, or no type at all; neither is used here")


def _skip(raw: bytes, position: int, length: int) -> int:
    if length > len(raw) - position:
        raise MalformedError(f"a value claims {length} bytes with {len(raw) - position} left")
    return position + length
