"""TensorBoard's event files, written without its packages: two nested formats, of which a run needs few fields.

TFRecord: u64 length, masked CRC-32C of the length, the bytes, masked CRC-32C of the bytes; all little-endian.
    mask(c) = (c rotated right by 15) + 0xa282ead8
https://www.tensorflow.org/tutorials/load_data/tfrecord

The bytes are a protobuf ``Event``: 1 wall_time (double), 2 step (int64), 3 file_version (string), 5 summary, 7
session_log. ``Summary`` is repeated 1 value; ``Value`` is 1 tag (string), 2 simple_value (float). A session log with 1
status = START (1) at step n hides steps from n on in earlier files of the folder: those of rounds that are repeated.
https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_POLYNOMIAL: Final = 0x82F63B78  # Castagnoli, reversed
_MASK: Final = 0xA282EAD8
_VERSION: Final = b"brain.Event:2"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_SESSION_START: Final = b"\x08\x01"


class EventFile:
    """Appends to a new event file in ``folder``. Every record is handed to the system before a call returns."""

    def __init__(self, folder: Path, *, time_seconds: float) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time_seconds):010d}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("ab", buffering=0)
        self._file.write(framed(_event(time_seconds, 0, _field(3, _BYTES, _VERSION))))

    def begin_at(self, step: int, time_seconds: float) -> None:
        """Hides what earlier files say of this step and later ones."""
        self._file.write(framed(_event(time_seconds, step, _field(7, _BYTES, _SESSION_START))))

    def write(self, step: int, time_seconds: float, numbers: Mapping[str, float]) -> None:
        values = b"".join(
            _field(1, _BYTES, _field(1, _BYTES, tag.encode()) + _field(2, _FIXED32, struct.pack("<f", value)))
            for tag, value in numbers.items()
        )
        self._file.write(framed(_event(time_seconds, step, _field(5, _BYTES, values))))

    def close(self) -> None:
        self._file.close()


def framed(content: bytes) -> bytes:
    """Returns one record of a TFRecord file."""
    length = struct.pack("<Q", len(content))
    return length + _checksum(length) + content + _checksum(content)


def _checksum(content: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF)


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE: Final = tuple(map(_table_entry, range(256)))


def _event(time_seconds: float, step: int, what: bytes) -> bytes:
    return _field(1, _FIXED64, struct.pack("<d", time_seconds)) + _field(2, _VARINT, _varint(step)) + what


def _field(number: int, wire_type: int, content: bytes) -> bytes:
    key = bytes([number << 3 | wire_type])
    return key + (_varint(len(content)) if wire_type == _BYTES else b"") + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
