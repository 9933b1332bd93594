"""Top-k of each chunk with error feedback, in two bits a value: SparseLoCo's compressor (arXiv 2508.15706).

    e ← β e + Δ           float32, β e rounded before Δ is added
    S = the k entries of greatest magnitude in each chunk of 4096 of e; among equal ones those of lower index
    v̂ = codebook[q(v)]     for v in S, with one codebook of four values a tensor
    e ← e − v̂             on S, float32
    θ ← θ − α mean v̂       over the peers that sent an index, each clipped to the median norm

It departs from the authors' code in two ways. Sums are taken over integers u = rint(v · 2^(16 − x)), with x the binary
exponent of the largest |v| of the tensor (2^(x−1) ≤ |v| < 2^x; at least -100): no order of summation matters, so every
implementation agrees to the bit. And a code is the sign and whether |u| reaches the root mean square r of the tensor,

    q = [u ≥ −r] + [u ≥ 0] + [u ≥ r],     codebook[q] = mean of u in the bin · 2^(x − 16)

where theirs is round((v − mean) / (1.5 σ) + 2). The values that top-k keeps have two modes; theirs puts each mode into
one bin, so that two bits carry what one could, and mixes signs in the middle bin. Ours loses a half to two thirds less
(``scripts/bench/sparse_update.py`` prints both). A receiver needs no change, because the codebook is sent.

A chunk that ends the tensor early, with m < 4096 elements, keeps ⌈k m / 4096⌉.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol import limits

CHUNK_ELEMENTS: Final = 4096
CODES: Final = 4
STEP_BITS: Final = 16  # the largest value of a tensor lies between 2^15 and 2^16 steps
MIN_EXPONENT: Final = -100

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class SparseTensor:
    """The entries that are sent of one tensor of ``size`` elements, ``kept`` of every whole chunk.

    ``decode_update`` guarantees: as many ``indices`` and ``codes`` as ``kept_count(size, kept)``; indices rise
    within a chunk and lie inside it; codes are below 4; the codebook is finite, within ``limits.UPDATE_MAGNITUDE``.
    """

    size: int
    kept: int
    indices: NDArray[np.uint16]  # (N,) within the chunk, chunk by chunk
    codes: NDArray[np.uint8]  # (N,)
    codebook: Floats  # (4,)

    @property
    def positions(self) -> NDArray[np.int64]:
        """(N,) within the tensor, rising."""
        return positions_of(self.indices, self.size, self.kept)

    @property
    def values(self) -> Floats:
        """(N,)"""
        return self.codebook[self.codes]


def kept_of_chunks(size: int, kept: int) -> NDArray[np.int64]:
    """The number of entries of each chunk that are sent."""
    whole, rest = divmod(size, CHUNK_ELEMENTS)
    return np.array([kept] * whole + [-(-kept * rest // CHUNK_ELEMENTS)] * (rest > 0), dtype=np.int64)


def kept_count(size: int, kept: int) -> int:
    """The number of entries of a tensor of ``size`` elements that are sent."""
    whole, rest = divmod(size, CHUNK_ELEMENTS)
    return whole * kept + -(-kept * rest // CHUNK_ELEMENTS)


def positions_of(indices: NDArray[np.uint16], size: int, kept: int) -> NDArray[np.int64]:
    """The places in the tensor of the entries that have these indices in their chunks."""
    chunks = np.repeat(np.arange(-(-size // CHUNK_ELEMENTS)), kept_of_chunks(size, kept))
    return chunks * CHUNK_ELEMENTS + indices


def sparsify(residual: Floats, delta: Floats, *, decay: float, kept: int) -> SparseTensor:
    """The sparse form of ``decay · residual + delta``; ``residual`` (n,) becomes what is not sent of it.

    Raises ValueError for values that are not finite or exceed ``limits.UPDATE_MAGNITUDE``; ``residual`` then holds the
    sum. This is the definition; ``node.kernels`` has the fast form.
    """
    check_arguments(residual.shape, delta.shape, decay, kept)
    residual *= np.float32(decay)
    residual += delta
    chosen = []
    for start, count in zip(
        range(0, len(residual), CHUNK_ELEMENTS), kept_of_chunks(len(residual), kept).tolist(), strict=True
    ):
        magnitudes = magnitude_keys(residual[start : start + CHUNK_ELEMENTS])
        chosen.append(np.sort(np.argsort(-magnitudes, kind="stable")[:count]))
    indices = np.concatenate(chosen).astype(np.uint16)
    positions = positions_of(indices, len(residual), kept)
    values = residual[positions]
    exponent = step_exponent(int(magnitude_keys(values).max()))
    steps = np.rint(values * np.float32(2.0 ** (STEP_BITS - exponent))).astype(np.int64)
    bounds = code_bounds(int((steps * steps).sum()), len(steps))
    codes = np.searchsorted(np.array(bounds), steps, side="right").astype(np.uint8)
    counts = np.bincount(codes, minlength=CODES)
    sums = [int(steps[codes == code].sum()) for code in range(CODES)]
    sparse = SparseTensor(len(residual), kept, indices, codes, codebook_of(sums, counts.tolist(), exponent))
    residual[positions] -= sparse.values
    return sparse


def check_arguments(residual: tuple[int, ...], delta: tuple[int, ...], decay: float, kept: int) -> None:
    """Raises ValueError unless ``sparsify`` accepts arrays of these shapes and this configuration."""
    if len(residual) != 1 or residual != delta or not 1 <= residual[0] <= limits.TENSOR_ELEMENTS:
        raise ValueError(f"residual {residual} and delta {delta} must be flat, equally long and not empty")
    if not 1 <= kept <= CHUNK_ELEMENTS or not 0 <= decay <= 1:
        raise ValueError(f"kept {kept} must be 1 to {CHUNK_ELEMENTS} and decay {decay} 0 to 1")


def magnitude_keys(values: Floats) -> NDArray[np.int32]:
    """Integers with the order of the magnitudes; that of NaN is above every other."""
    return values.view(np.int32) & np.int32(0x7FFFFFFF)


def step_exponent(largest_key: int) -> int:
    """The exponent x of the largest magnitude, given its key. Raises ValueError if it cannot be sent."""
    largest = float(np.int32(largest_key).view(np.float32))
    if not largest <= limits.UPDATE_MAGNITUDE:
        raise ValueError(f"an update holds {largest}; finite and at most ±{limits.UPDATE_MAGNITUDE} can be sent")
    return max(math.frexp(largest)[1], MIN_EXPONENT)


def code_bounds(total_squares: int, count: int) -> tuple[int, int, int]:
    """The least integers u of codes 1, 2 and 3, from Σu² and the number of entries."""
    root_mean_square = math.sqrt(total_squares / count)
    return math.ceil(-root_mean_square), 0, math.ceil(root_mean_square)


def codebook_of(sums: Sequence[int], counts: Sequence[int], exponent: int) -> Floats:
    """The mean of each bin from Σu and the count; 0 for an empty one."""
    steps = (total / count if count else 0.0 for total, count in zip(sums, counts, strict=True))
    return np.array([math.ldexp(step, exponent - STEP_BITS) for step in steps], dtype=np.float32)


def sent_by_both(one: SparseTensor, other: SparseTensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The entries of either update that are of the same elements; both are updates of one tensor."""
    positions, sought = one.positions, other.positions
    near = np.minimum(np.searchsorted(positions, sought), len(positions) - 1)
    (common,) = np.nonzero(positions[near] == sought)
    return near[common], common


def scatter_mean(updates: Sequence[SparseTensor]) -> Floats:
    """(n,) The mean at each index over the updates that have it, each clipped to the median norm; 0 where none has it.

    Values are added in the order given, in float32.
    """
    codebooks = clipped_codebooks(updates)
    total = np.zeros(updates[0].size, dtype=np.float32)
    contributors = np.zeros(updates[0].size, dtype=np.float32)
    for update, codebook in zip(updates, codebooks, strict=True):
        total[update.positions] += codebook[update.codes]
        contributors[update.positions] += 1
    return np.divide(total, contributors, out=total, where=contributors > 0)


def clipped_codebooks(updates: Sequence[SparseTensor]) -> list[Floats]:
    """The codebooks, scaled so that no update of this tensor exceeds the median norm (the lower one of two).

    Raises ValueError for no update, or for updates of unequal sizes.
    """
    if len({update.size for update in updates}) != 1:
        sizes = [update.size for update in updates]
        raise ValueError(f"updates of sizes {sizes}; at least one, and all of one size, are needed")
    norms = [norm_of(update) for update in updates]
    median = sorted(norms)[(len(norms) - 1) // 2]
    factors = [median / norm if norm > median else 1.0 for norm in norms]
    return [
        (update.codebook.astype(np.float64) * factor).astype(np.float32)
        for update, factor in zip(updates, factors, strict=True)
    ]


def norm_of(update: SparseTensor) -> float:
    """The Euclidean norm, from the number of entries of each code: four terms, always added in the same order."""
    counts = np.bincount(update.codes, minlength=CODES).tolist()
    return math.sqrt(sum(n * value * value for n, value in zip(counts, update.codebook.tolist(), strict=True)))
