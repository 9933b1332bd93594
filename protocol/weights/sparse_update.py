"""The blob form of a sparse update: some entries of every tensor of a layout, two bits each, and their places.

``b"SLU1"``, a header, and for each tensor a section: indices, then codes (``docs/protocol.md`` gives every byte).

Of each chunk of 4096 a fixed number is sent. Therefore no count is sent, and every length follows from the layout, from
``kept`` and, for Rice-coded indices alone, from one number in the header. An index takes 12 bits, or a Rice-coded gap
where that is shorter: 7.5 bits at 64 of 4096 at random places, so that a value takes 9.5 bits instead of 14.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from protocol import limits
from protocol.errors import MalformedError
from protocol.messages import Hash16
from protocol.weights.rice import rice_bytes, rice_decode, rice_encode
from protocol.weights.sparsify import CHUNK_ELEMENTS, CODES, Floats, SparseTensor, kept_count, kept_of_chunks
from protocol.weights.tensor_frame import check_layout, column, cut_sections, join_frame, open_header
from protocol.weights.tensor_layout import TensorLayout

UPDATE_MAGIC: Final = b"SLU1"
PLAIN: Final = 12  # the coding of indices in 12 bits each; a lower number is the parameter of a Rice coding


class _Header(Struct, frozen=True, array_like=True):
    """T is the number of tensors."""

    layout: Hash16
    kept: Annotated[int, Meta(ge=1, le=CHUNK_ELEMENTS)]
    codings: bytes  # T
    index_lengths: bytes  # T u32, bytes
    codebooks: bytes  # 4 T float32


@dataclass(frozen=True, slots=True, eq=False)
class TensorSection:
    """One tensor as it is sent. ``content`` is ``index_bytes`` of indices, and then the codes."""

    coding: int
    index_bytes: int
    codebook: Floats
    content: bytes | memoryview


def encode_update(layout: TensorLayout, tensors: Sequence[SparseTensor]) -> bytes:
    """The blob of an update; ``tensors`` are in the layout's order, all with the same ``kept``."""
    if [tensor.size for tensor in tensors] != list(layout.sizes) or len({tensor.kept for tensor in tensors}) != 1:
        raise ValueError("the tensors of an update must be those of its layout, all with the same number kept")
    return join_update(layout, tensors[0].kept, [pack_section(tensor) for tensor in tensors])


def join_update(layout: TensorLayout, kept: int, sections: Sequence[TensorSection]) -> bytes:
    """The blob with these sections, in the layout's order."""
    header = _Header(
        layout.digest,
        kept,
        bytes(section.coding for section in sections),
        np.array([section.index_bytes for section in sections], "<u4").tobytes(),
        np.concatenate([section.codebook for section in sections]).astype("<f4").tobytes(),
    )
    return join_frame(UPDATE_MAGIC, header, [bytes(section.content) for section in sections])


def decode_update(blob: bytes | memoryview, layout: TensorLayout) -> list[SparseTensor]:
    """The tensors of an update, with every guarantee of ``SparseTensor``, in the layout's order.

    Allocates at most a few times the blob's size. Raises ``MalformedError`` or ``OversizedError``;
    ``IntegrityError`` if the update is for another layout.
    """
    kept, sections = open_update(blob, layout)
    return [unpack_section(section, size, kept) for section, size in zip(sections, layout.sizes, strict=True)]


def open_update(blob: bytes | memoryview, layout: TensorLayout) -> tuple[int, list[TensorSection]]:
    """The number of entries kept of a chunk, and the sections, each of the length that the layout requires.

    Raises as ``decode_update`` does. The sections are neither copied nor decoded.
    """
    header, body = open_header(memoryview(blob), UPDATE_MAGIC, _Header)
    check_layout(header.layout, layout)
    codings = column(header.codings, layout, "u1", "codings").tolist()
    index_lengths = column(header.index_lengths, layout, "<u4", "index lengths").tolist()
    codebooks = column(header.codebooks, layout, "<f4", "codebooks", per_tensor=CODES).reshape(-1, CODES)
    if max(codings) > PLAIN:
        raise MalformedError(f"coding {max(codings)} of indices; known are 0 to {PLAIN}")
    if not (np.abs(codebooks) <= limits.UPDATE_MAGNITUDE).all():  # refuses NaN too
        raise MalformedError(f"a codebook with a value that is not finite or above {limits.UPDATE_MAGNITUDE}")
    counts = [kept_count(size, header.kept) for size in layout.sizes]
    lengths = [length + -(-count // 4) for length, count in zip(index_lengths, counts, strict=True)]
    contents = cut_sections(body, lengths)
    return header.kept, [
        TensorSection(coding, length, codebook.astype(np.float32), content)
        for coding, length, codebook, content in zip(codings, index_lengths, codebooks, contents, strict=True)
    ]


def pack_section(tensor: SparseTensor) -> TensorSection:
    """One tensor's section, in the shortest coding of indices."""
    gaps = _gaps(tensor)
    coding, _ = shortest_coding(np.bincount(gaps, minlength=1))
    indices = rice_encode(gaps, coding) if coding < PLAIN else pack_plain(tensor.indices)
    codes = np.zeros(-(-len(tensor.codes) // 4) * 4, dtype=np.uint8)
    codes[: len(tensor.codes)] = tensor.codes
    four = codes.reshape(-1, 4)
    packed = four[:, 0] | four[:, 1] << 2 | four[:, 2] << 4 | four[:, 3] << 6
    return TensorSection(coding, len(indices), tensor.codebook, indices + packed.tobytes())


def shortest_coding(histogram: NDArray[np.int64]) -> tuple[int, int]:
    """The coding that takes the fewest bytes for gaps of this histogram (the lowest of equals), and that number."""
    plain_bytes = -(-3 * int(histogram.sum()) // 2)
    costs = [*(rice_bytes(histogram, parameter) for parameter in range(PLAIN)), plain_bytes]
    return costs.index(min(costs)), min(costs)


def unpack_section(section: TensorSection, size: int, kept: int) -> SparseTensor:
    """The tensor of a section that ``open_update`` returned. Raises ``MalformedError``."""
    count = kept_count(size, kept)
    content = memoryview(section.content)
    codes = _unpack_codes(content[section.index_bytes :], count)
    # Checked before the unary stream is expanded: the shortest coding never takes more than 12 bits an index.
    if section.index_bytes > -(-3 * count // 2):
        raise MalformedError(f"{section.index_bytes} bytes of indices; 12 bits for each of {count} are fewer")
    if section.coding < PLAIN:
        gaps = rice_decode(content[: section.index_bytes], count, section.coding)
        indices = _indices(gaps, size, kept)
    else:
        indices = _unpack_plain(content[: section.index_bytes], count)
    tensor = SparseTensor(size, kept, indices.astype(np.uint16), codes, section.codebook)
    _check_indices(indices, tensor)
    return tensor


def _chunk_starts(size: int, kept: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the entries of each chunk begin, and their number, which is at least one."""
    counts = kept_of_chunks(size, kept)
    return np.cumsum(counts) - counts, counts


def _gaps(tensor: SparseTensor) -> NDArray[np.int64]:
    """The entries passed over before each index, counted from the previous index or from the chunk's beginning."""
    indices = tensor.indices.astype(np.int64)
    gaps = np.diff(indices, prepend=-1) - 1
    starts, _ = _chunk_starts(tensor.size, tensor.kept)
    gaps[starts] = indices[starts]
    return gaps


def _indices(gaps: NDArray[np.int64], size: int, kept: int) -> NDArray[np.int64]:
    starts, counts = _chunk_starts(size, kept)
    ends = np.cumsum(gaps + 1)  # one after each entry, as if no elements lay between a chunk's last entry and its end
    before = np.repeat(ends[starts] - gaps[starts] - 1, counts)
    return ends - before - 1


def _check_indices(indices: NDArray[np.int64], tensor: SparseTensor) -> None:
    """Raises ``MalformedError`` unless indices rise within each chunk and end inside it."""
    starts, counts = _chunk_starts(tensor.size, tensor.kept)
    steps = np.diff(indices, prepend=-1)
    steps[starts] = 1
    lengths = np.minimum(tensor.size - np.arange(len(starts)) * CHUNK_ELEMENTS, CHUNK_ELEMENTS)
    if (steps < 1).any() or (indices[starts + counts - 1] >= lengths).any():
        raise MalformedError("indices of a chunk that do not rise, or lie outside it")


def pack_plain(indices: NDArray[np.uint16]) -> bytes:
    """Two indices a, b in three bytes: a's low 8 bits; a's high 4 below b's low 4; b's high 8."""
    pairs = np.zeros(-(-len(indices) // 2) * 2, dtype=np.uint16)
    pairs[: len(indices)] = indices
    a, b = pairs[0::2], pairs[1::2]
    packed = np.stack([a & 0xFF, a >> 8 | (b & 0xF) << 4, b >> 4], axis=1).astype(np.uint8)
    return packed.tobytes()[: -(-3 * len(indices) // 2)]


def _unpack_plain(raw: memoryview, count: int) -> NDArray[np.int64]:
    if len(raw) != -(-3 * count // 2):
        raise MalformedError(f"{len(raw)} bytes for {count} indices of 12 bits")
    padded = np.zeros(-(-count // 2) * 3, dtype=np.int64)
    padded[: len(raw)] = np.frombuffer(raw, np.uint8)
    low, middle, high = padded.reshape(-1, 3).T
    indices = np.stack([low | (middle & 0xF) << 8, middle >> 4 | high << 4], axis=1).ravel()
    if indices[count:].any():
        raise MalformedError("bits after the last index")
    return indices[:count]


def _unpack_codes(raw: memoryview, count: int) -> NDArray[np.uint8]:
    packed = np.frombuffer(raw, np.uint8)  # ⌈count / 4⌉ bytes: the section has the length that the layout requires
    codes = np.stack([packed & 3, packed >> 2 & 3, packed >> 4 & 3, packed >> 6], axis=1).ravel()
    if codes[count:].any():
        raise MalformedError("bits after the last code")
    return codes[:count]
