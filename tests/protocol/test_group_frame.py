"""The zstd frame around a group: bombs, lies about sizes, frames that are cut or doubled."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
import zstandard

from protocol import limits
from protocol.columns import compress_columns, decompress_columns
from protocol.errors import MalformedError, OversizedError, ProtocolError
from protocol.rollouts import GROUP_MAGIC, Group, decode_group, encode_group, most_content_bytes

MIB = 1024 * 1024


def repeated_byte_frame(blocks: int, *, header: bytes = b"\x00\x38") -> bytes:
    """A zstd frame, written by hand, of ``blocks`` run-length blocks: four bytes for 128 KiB of zeros each.

    The header is the frame descriptor (no size stated, no checksum) and the window descriptor (128 KiB).
    """
    block = (128 * 1024 << 3) | (1 << 1)
    run = block.to_bytes(3, "little") + b"\x00"
    return zstandard.FRAME_HEADER + header + run * (blocks - 1) + (block | 1).to_bytes(3, "little") + b"\x00"


def peak_bytes(action: Callable[[], object], refusal: type[ProtocolError]) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(refusal):
            action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_frame_written_by_hand_is_a_frame() -> None:
    assert decompress_columns(repeated_byte_frame(3), max_bytes=MIB) == bytes(3 * 128 * 1024)


def test_bomb_of_a_terabyte_is_refused_within_the_bound() -> None:
    bomb = GROUP_MAGIC + repeated_byte_frame(2 * MIB)[: limits.GROUP_BLOB_BYTES - 4]
    assert peak_bytes(lambda: decode_group(bomb), OversizedError) < limits.GROUP_BYTES + 12 * MIB


def test_no_more_is_decompressed_than_the_advertised_tokens_can_need() -> None:
    blob = GROUP_MAGIC + repeated_byte_frame(24)
    with pytest.raises(OversizedError, match=f"more than {most_content_bytes(100)} bytes"):
        decode_group(blob, tokens=100)
    with pytest.raises(MalformedError):
        decode_group(blob)  # 3 MiB of zeros: within the bound of the largest group


def test_bomb_stops_at_the_callers_bound() -> None:
    assert peak_bytes(lambda: decompress_columns(repeated_byte_frame(10_000), max_bytes=MIB), OversizedError) < 12 * MIB


def test_many_values_within_the_bound_are_refused_without_being_built() -> None:
    values = limits.GROUP_BYTES - 16
    content = b"\xdd" + values.to_bytes(4, "big") + bytes(values)
    blob = GROUP_MAGIC + zstandard.compress(content)
    assert peak_bytes(lambda: decode_group(blob), OversizedError) < 3 * limits.GROUP_BYTES


def test_stated_content_size_is_not_believed(make_group: Callable[..., Group]) -> None:
    exabyte = b"\xc0\x38" + (1 << 60).to_bytes(8, "little")  # eight bytes of stated size follow the window
    blob = GROUP_MAGIC + repeated_byte_frame(1, header=exabyte)
    assert peak_bytes(lambda: decode_group(blob), MalformedError) < 16 * MIB


def test_window_over_the_bound_is_refused() -> None:
    bound_bits = limits.GROUP_WINDOW_BYTES.bit_length() - 1
    largest, too_large = (bytes([0x00, (bits - 10) << 3]) for bits in (bound_bits, bound_bits + 1))
    assert decompress_columns(repeated_byte_frame(1, header=largest), max_bytes=MIB) == bytes(128 * 1024)
    with pytest.raises(MalformedError, match="zstd"):
        decompress_columns(repeated_byte_frame(1, header=too_large), max_bytes=MIB)


def test_largest_content_needs_no_larger_window_than_allowed() -> None:
    frame = compress_columns(bytes(limits.GROUP_BYTES), [])
    assert zstandard.get_frame_parameters(frame).window_size <= limits.GROUP_WINDOW_BYTES


def test_every_truncation_of_a_blob_is_malformed(make_group: Callable[..., Group]) -> None:
    blob = encode_group(make_group())
    for cut in range(len(blob)):
        with pytest.raises(MalformedError):
            decode_group(blob[:cut])


def test_bytes_or_frames_after_the_frame_are_malformed(make_group: Callable[..., Group]) -> None:
    blob = encode_group(make_group())
    empty_frame, skippable = zstandard.compress(b""), b"\x50\x2a\x4d\x18" + bytes(4)
    for appended in (b"\0", b"x" * 300, blob[len(GROUP_MAGIC) :], empty_frame, skippable):
        with pytest.raises(MalformedError):
            decode_group(blob + appended)


def test_blob_of_another_format_or_version_is_malformed(make_group: Callable[..., Group]) -> None:
    blob = encode_group(make_group())
    for other in (b"SLG2" + blob[4:], blob[4:], b"", b"SLG", GROUP_MAGIC):
        with pytest.raises(MalformedError):
            decode_group(other)


def test_blob_over_its_bound_is_refused_before_it_is_read() -> None:
    with pytest.raises(OversizedError, match=str(limits.GROUP_BLOB_BYTES)):
        decode_group(bytes(limits.GROUP_BLOB_BYTES + 1))


def test_blocks_ended_anywhere_change_nothing_but_the_size() -> None:
    content = bytes(range(256)) * 20
    for ends in ([], [1], [0, 0, 5], [100, 2_000, len(content)]):
        assert decompress_columns(compress_columns(content, ends), max_bytes=len(content)) == content
