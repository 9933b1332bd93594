"""Weight diffs: the bf16 weights that changed between two versions. Lossless, and harmless if applied twice.

Bit patterns are compared as integers, so that the two zeros differ and a NaN equals itself. ``b"SLD1"``, a header, and
for each tensor a section (``docs/protocol.md`` gives every byte):

    gap        weights passed over before a changed one, Rice-coded; at a rate p about log2(e / p) bits
    change     zigzag of the pattern's difference from the base's, two byte planes, zstd: mostly a step up or down

If a section would be longer than the compressed byte planes of its tensor's patterns, it holds those instead ("dense").

The header has the hashes of base and target, and the digest of each section, so that a receiver knows why a diff does
not fit: with ``StaleBaseError``, other weights are needed first; with ``IntegrityError``, the bytes are not those that
were sent, or do not lead to the target that they name. Decoded changes are positions and absolute values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import zstandard
from msgspec import Struct
from numpy.typing import NDArray

from protocol.errors import IntegrityError, MalformedError, StaleBaseError
from protocol.messages import Hash16, Hash32
from protocol.weights.rice import PARAMETERS, max_rice_bytes, near_parameter, rice_decode, rice_encode
from protocol.weights.tensor_frame import check_layout, column, cut_sections, join_frame, open_header
from protocol.weights.tensor_layout import TensorLayout

DIFF_MAGIC: Final = b"SLD1"
DENSE: Final = PARAMETERS  # the coding of a dense section; a lower number is the Rice parameter of a sparse one
SECTION_DIGEST_BYTES: Final = 16
_WEIGHTS_DOMAIN: Final = b"starling/weights/1\0"
_ZSTD_LEVEL: Final = 1  # a higher level saves 1 % of a section and takes several times as long

Patterns = NDArray[np.uint16]


@dataclass(frozen=True, slots=True, eq=False)
class TensorChange:
    """The change of a tensor of ``size`` weights: ``values`` at ``positions`` (rising), or everywhere if None."""

    size: int
    positions: NDArray[np.int64] | None  # (c,)
    values: Patterns  # (c,), or (n,)


@dataclass(frozen=True, slots=True, eq=False)
class DiffSection:
    """One tensor's section of a diff as it is sent; a sparse one has ``gap_bytes`` of gaps and then a zstd frame."""

    coding: int
    count: int  # of changed weights
    gap_bytes: int
    content: bytes | memoryview


@dataclass(frozen=True, slots=True, eq=False)
class WeightDiff:
    """A diff whose header, lengths and section digests were checked."""

    base: bytes  # 32 bytes, ``weights_hash`` of the weights that it changes
    target: bytes  # 32 bytes, of the weights that it leads to
    sections: tuple[DiffSection, ...]

    @property
    def changed(self) -> int:
        """The number of weights that it changes."""
        return sum(section.count for section in self.sections)


class _Header(Struct, frozen=True, array_like=True):
    """T is the number of tensors."""

    layout: Hash16
    base: Hash32
    target: Hash32
    codings: bytes  # T
    counts: bytes  # T u32
    gap_lengths: bytes  # T u64, bytes
    lengths: bytes  # T u64, bytes of the section
    digests: bytes  # 16 T: the first 16 bytes of each section's SHA-256


def weights_hash(layout: TensorLayout, weights: Sequence[Patterns]) -> bytes:
    """SHA-256("starling/weights/1\\0" ‖ layout digest ‖ SHA-256 of each tensor's little-endian patterns), 32 bytes."""
    check_weights(layout, weights)
    return hash_of_digests(layout, [tensor_digest(tensor) for tensor in weights])


def tensor_digest(patterns: Patterns) -> bytes:
    """SHA-256 of one tensor's patterns (n,), little-endian."""
    return hashlib.sha256(patterns.astype("<u2", copy=False).data).digest()


def hash_of_digests(layout: TensorLayout, digests: Sequence[bytes]) -> bytes:
    """``weights_hash`` from the tensors' digests."""
    return hashlib.sha256(b"".join((_WEIGHTS_DOMAIN, layout.digest, *digests))).digest()


def check_weights(layout: TensorLayout, weights: Sequence[Patterns]) -> None:
    """Raises ValueError unless these are the layout's tensors, flat, in its order."""
    if [tensor.shape for tensor in weights] != [(size,) for size in layout.sizes]:
        raise ValueError("the weights must be the tensors of the layout, flat and in its order")


def encode_diff(layout: TensorLayout, base: Sequence[Patterns], target: Sequence[Patterns]) -> bytes:
    """The blob of the diff that leads from ``base`` to ``target``, with patterns in the layout's order."""
    sections = [pack_tensor(old, new) for old, new in zip(base, target, strict=True)]
    return join_diff(layout, weights_hash(layout, base), weights_hash(layout, target), sections)


def join_diff(layout: TensorLayout, base: bytes, target: bytes, sections: Sequence[DiffSection]) -> bytes:
    """The blob with these sections, in the layout's order."""
    contents = [bytes(section.content) for section in sections]
    header = _Header(
        layout.digest,
        base,
        target,
        bytes(section.coding for section in sections),
        np.array([section.count for section in sections], "<u4").tobytes(),
        np.array([section.gap_bytes for section in sections], "<u8").tobytes(),
        np.array([len(content) for content in contents], "<u8").tobytes(),
        b"".join(_digest(content) for content in contents),
    )
    return join_frame(DIFF_MAGIC, header, contents)


def open_diff(blob: bytes | memoryview, layout: TensorLayout) -> WeightDiff:
    """The diff in a blob, with sections that match their digests and are not decoded yet.

    Raises ``MalformedError`` or ``OversizedError``; ``IntegrityError`` for a damaged section or another layout.
    """
    header, body = open_header(memoryview(blob), DIFF_MAGIC, _Header)
    check_layout(header.layout, layout)
    codings = column(header.codings, layout, "u1", "codings").tolist()
    counts = column(header.counts, layout, "<u4", "counts").tolist()
    gap_lengths = column(header.gap_lengths, layout, "<u8", "gap lengths").tolist()
    lengths = column(header.lengths, layout, "<u8", "section lengths").tolist()
    column(header.digests, layout, "u1", "digests", per_tensor=SECTION_DIGEST_BYTES)
    contents = cut_sections(body, lengths)
    sections = tuple(DiffSection(*parts) for parts in zip(codings, counts, gap_lengths, contents, strict=True))
    for index, (section, size) in enumerate(zip(sections, layout.sizes, strict=True)):
        _check_section(section, size)
        start = index * SECTION_DIGEST_BYTES
        if _digest(section.content) != header.digests[start : start + SECTION_DIGEST_BYTES]:
            raise IntegrityError(f"the section of {layout.names[index]} is damaged: it does not match its digest")
    return WeightDiff(header.base, header.target, sections)


def apply_diff(blob: bytes | memoryview, layout: TensorLayout, weights: Sequence[Patterns]) -> bool:
    """Takes ``weights`` from the diff's base to its target, in place. Returns False if they were the target already.

    Afterwards they are exactly the target; if the call raises, they are exactly what they were. Raises
    ``StaleBaseError`` for weights that are neither base nor target, ``IntegrityError`` if the result is not the target,
    and what ``open_diff`` and ``unpack_tensor`` raise.
    """
    diff = open_diff(blob, layout)
    found = weights_hash(layout, weights)
    if found == diff.target:
        return False
    check_base(diff, found)
    changes = [unpack_tensor(section, old) for section, old in zip(diff.sections, weights, strict=True)]
    undo = [patch(tensor, change) for tensor, change in zip(weights, changes, strict=True)]
    if weights_hash(layout, weights) != diff.target:
        for tensor, change in zip(weights, undo, strict=True):
            patch(tensor, change)
        raise IntegrityError(f"the diff does not lead to the weights {diff.target.hex()} that it names")
    return True


def check_base(diff: WeightDiff, found: bytes) -> None:
    """Raises ``StaleBaseError`` unless ``found`` is the hash of the diff's base."""
    if found != diff.base:
        raise StaleBaseError(
            f"the diff changes {diff.base.hex()}; the weights here are {found.hex()}: fetch those first"
        )


def patch(weights: Patterns, change: TensorChange) -> TensorChange:
    """Writes a change into ``weights`` (n,) and returns the change that reverses it."""
    where = slice(None) if change.positions is None else change.positions
    undo = TensorChange(change.size, change.positions, weights[where].copy())
    weights[where] = change.values
    return undo


def pack_tensor(base: Patterns, target: Patterns) -> DiffSection:
    """The section of one tensor, sparse or dense, whichever is shorter."""
    positions = np.flatnonzero(base != target)
    gaps = np.diff(positions, prepend=-1) - 1
    steps = (target[positions] - base[positions]).view(np.int16)  # modulo 2^16, as signed
    zigzag = (steps << 1 ^ steps >> 15).view(np.uint16)
    parameter, _ = near_parameter(gaps, len(base))
    coded = rice_encode(gaps, parameter)
    return shorter_section(parameter, len(gaps), coded, byte_planes(zigzag), len(target), lambda: target)


def shorter_section(
    parameter: int, count: int, gaps: bytes, planes: bytes, size: int, target: Callable[[], Patterns]
) -> DiffSection:
    """The sparse section, or the dense one if that is shorter.

    The dense one is not tried if the sparse one takes at most a byte a weight. ``target`` returns the tensor's ``size``
    patterns; it is called only if they are needed.
    """
    content = gaps + compress_planes(planes) if count else b""
    if len(content) > size:
        dense = compress_planes(byte_planes(target()))
        if len(dense) < len(content):
            return DiffSection(DENSE, count, 0, dense)
    return DiffSection(parameter, count, len(gaps), content)


def unpack_tensor(section: DiffSection, base: Patterns) -> TensorChange:
    """The change in a section that ``open_diff`` returned, for the tensor's patterns ``base`` (n,).

    Raises ``MalformedError``. Allocates a few times the section's size and its count, which is at most n.
    """
    size, count = len(base), section.count
    content = memoryview(section.content)
    if section.coding == DENSE:
        return TensorChange(size, None, from_byte_planes(decompress_planes(content, 2 * size)))
    gaps = rice_decode(content[: section.gap_bytes], count, section.coding)
    positions = np.cumsum(gaps + 1) - 1
    if count and positions[-1] >= size:
        raise MalformedError(f"a change at {positions[-1]} of {size} weights")
    planes = decompress_planes(content[section.gap_bytes :], 2 * count) if count else b""
    zigzag = from_byte_planes(planes)
    if not zigzag.all():
        raise MalformedError("a change that changes nothing")
    steps = zigzag >> 1 ^ -(zigzag & 1).astype(np.int16).view(np.uint16)
    return TensorChange(size, positions, base[positions] + steps)


def byte_planes(numbers: Patterns) -> bytes:
    """The low bytes of all numbers, then the high bytes."""
    return numbers.astype("<u2", copy=False).view(np.uint8).reshape(-1, 2).T.tobytes()


def from_byte_planes(planes: bytes) -> Patterns:
    """The numbers in the two planes that ``byte_planes`` returned."""
    numbers: Patterns = np.frombuffer(planes, np.uint8).reshape(2, -1).T.astype(np.uint8, order="C").view("<u2").ravel()
    return numbers.astype(np.uint16, copy=False)


def compress_planes(planes: bytes) -> bytes:
    """One zstd frame that states its size, with at least one block for each of the two planes."""
    compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compressobj(size=len(planes))
    middle = len(planes) // 2
    low = compressor.compress(planes[:middle]) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return low + compressor.compress(planes[middle:]) + compressor.flush()


def decompress_planes(frame: memoryview, size_bytes: int) -> bytes:
    """The content of one zstd frame, which must state the size ``size_bytes``. Raises ``MalformedError``."""
    try:
        stated = zstandard.get_frame_parameters(frame).content_size
        if stated != size_bytes:
            raise MalformedError(f"a zstd frame of {stated} bytes; {size_bytes} are expected")
        return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise MalformedError(f"not one whole zstd frame: {error}") from error


def _check_section(section: DiffSection, size: int) -> None:
    """Raises ``MalformedError`` unless coding, count and lengths can be those of a tensor of ``size`` weights."""
    coding, count, length = section.coding, section.count, len(section.content)
    if coding > DENSE or count > size or section.gap_bytes > length:
        raise MalformedError(
            f"coding {coding}, {count} changes of {size} weights, {section.gap_bytes} of {length} bytes"
        )
    if (coding == DENSE and section.gap_bytes) or (count == 0 and (coding or length)):
        raise MalformedError("a dense section with gaps, or a section without changes that is not empty")
    most = max_rice_bytes(count, coding, size)
    if coding < DENSE and section.gap_bytes > most:
        raise MalformedError(f"{section.gap_bytes} bytes of gaps; {most} suffice for {count} changes of {size} weights")


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).digest()[:SECTION_DIGEST_BYTES]
