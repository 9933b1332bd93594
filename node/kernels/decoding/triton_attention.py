"""One decode step's attention on a GPU: two kernels a layer, and a third where few rows leave processors idle.

``rotate_and_keep``  norms and rotates each row's queries and key, and writes key and value to the row's next slot
``attend``           attention of each row's queries over its shared prompt and over its own slots, in one softmax

Where the rows' tokens lie follows on the device from ``Rows``: no mask is made, and neither grid nor arguments depend
on lengths. So steps of equal shapes are equal launches. What a row reads at once are several rows with one seat and
positions that follow each other: all are kept before the first attends, and none sees what comes after it.

Bytes: each row's keys and values once; a shared prompt's once for every row that continues it, which the processor's
second-level cache serves when the rows of a prompt run together. Scores, softmax and sums are in float32. A weight of
the softmax enters its product as the sum of two numbers of the values' dtype: nothing but the result is rounded.

Checked against float64 in Triton's interpreter (``TRITON_INTERPRET=1``), and on an H200 (``docs/gpu.md``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from node.kernels.triton_products import nearest, plus_product

# Bytes of keys read at a time, with the values three times buffered in 48 KiB; AMD's registers hold a third of that.
_IS_AMD: Final = torch.version.hip is not None
TILE_BYTES: Final = 4096 if _IS_AMD else 8192
LEAST_QUERIES: Final = 16  # rows of the smallest product that tensor cores have
MOST_SPLITS: Final = 16
SPLIT_SLOTS: Final = 128  # fewer slots a part are not worth its own program
# Of the trials on an H200, 512 rows of 64 × 7 queries at a time: 20 µs, where four warps and two stages took 23.
_WARPS: Final = 8 if _IS_AMD else 2
_STAGES: Final = 2 if _IS_AMD else 3


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Where the tokens of n rows lie. ``keys`` and ``values`` are one layer's, contiguous, with S seats.

    Row r's own tokens lie at seat s = ``seats[r]`` in slots ``starts[s]`` to ``starts[s] + positions[r] -
    prompt_lengths[places[r]]``, the last of which is the newest token's. Without shared prompts ``prompt_keys`` is
    None, and the subtracted length 0. A slot past the last is the last: such a row has ended, and nobody reads its
    result. Nor that of a row without a seat, s < 0, of which nothing is kept.
    """

    keys: Tensor  # (S, kv heads, slots, size)
    values: Tensor
    starts: Tensor  # (S,) int32
    seats: Tensor  # (≥ n,) int32
    positions: Tensor  # (≥ n,) int64: of the newest token in its completion, prompt included
    prompt_keys: Tensor | None  # (prompts, kv heads, prompt slots, size)
    prompt_values: Tensor | None
    places: Tensor  # (≥ n,) int32: each row's prompt
    prompt_lengths: Tensor  # (prompts,) int32; a prompt lies at the end of its slots

    @property
    def most_slots(self) -> int:
        """That one row may read."""
        return self.keys.shape[2] + (0 if self.prompt_keys is None else self.prompt_keys.shape[2])


def rotate_and_keep(heads: Tensor, head_scale: Tensor | None, table: Tensor, epsilon: float, rows: Rows) -> None:
    """Changes the queries in ``heads``, (n, kv heads, queries + 2, size), and writes keys and values to ``rows``.

    ``head_scale``: (queries + 1, size), for models that norm each head's queries and key. ``table``: (length, size)
    float32, the cosine and sine of each position's angle for each pair of neighbouring coordinates.
    """
    count, kv_heads, joint, size = heads.shape
    _rotate_and_keep[(count, kv_heads)](
        heads, heads if head_scale is None else head_scale, table, rows.keys, rows.values,
        rows.starts, rows.seats, rows.positions, rows.places, rows.prompt_lengths, table.shape[0], rows.keys.shape[2],
        epsilon,
        SHARED=rows.prompt_keys is not None, SCALED=head_scale is not None, KV_HEADS=kv_heads, QUERIES=joint - 2,
        HEADS=triton.next_power_of_2(joint - 1), SIZE=size, PAIRS=triton.next_power_of_2(size // 2), num_warps=_WARPS,
    )  # fmt: skip


def attend(heads: Tensor, rows: Rows, processors: int) -> Tensor:
    """Returns attention's output, (n, kv heads, queries, size), for rotated queries in ``heads`` as above.

    ``processors``: how many programs run side by side; fewer rows than that are read in several parts each.
    """
    count, kv_heads, joint, size = heads.shape
    queries = joint - 2
    mixed = heads.new_empty(count, kv_heads, queries, size)
    splits = splits_for(count * kv_heads, rows.most_slots, processors)
    partial, logs = mixed, mixed
    if splits > 1:
        partial = torch.empty(count * kv_heads, splits, queries, size, dtype=torch.float32, device=heads.device)
        logs = torch.empty(count * kv_heads, splits, queries, dtype=torch.float32, device=heads.device)
    prompt_keys = rows.keys if rows.prompt_keys is None else rows.prompt_keys
    prompt_values = rows.values if rows.prompt_values is None else rows.prompt_values
    padded = max(16, triton.next_power_of_2(size))
    sizes = {
        "QUERIES": queries,
        "PADDED_QUERIES": max(LEAST_QUERIES, triton.next_power_of_2(queries)),
        "SIZE": size,
        "PADDED": padded,
    }
    _attend[(count * kv_heads, splits)](
        heads, rows.keys, rows.values, prompt_keys, prompt_values, mixed, partial, logs,
        rows.starts, rows.seats, rows.positions, rows.places, rows.prompt_lengths, rows.keys.shape[2],
        prompt_keys.shape[2], size**-0.5,
        SHARED=rows.prompt_keys is not None, KV_HEADS=kv_heads, SPLITS=splits,
        BLOCK=min(64, max(16, TILE_BYTES // (padded * heads.element_size()))), **sizes,
        num_warps=_WARPS, num_stages=_STAGES,
    )  # fmt: skip
    if splits > 1:
        _join[(count * kv_heads,)](partial, logs, mixed, SPLITS=splits, **sizes, num_warps=_WARPS)
    return mixed


def splits_for(programs: int, slots: int, processors: int) -> int:
    """Returns into how many parts the slots of a row are split: a power of 2, independent of the rows' lengths."""
    splits = 1
    while splits < MOST_SPLITS and programs * splits < processors and slots >= 2 * splits * SPLIT_SLOTS:
        splits *= 2
    return splits


@triton.jit
def _lies(row, starts, seats, positions, places, lengths, slots, SHARED: tl.constexpr):
    """Returns a row's seat, its first slot, the newest token's, its prompt's place and length, and the newest token's
    position."""
    seat = tl.load(seats + row)
    start = tl.load(starts + tl.maximum(seat, 0))
    position = tl.load(positions + row).to(tl.int32)
    place = start * 0
    length = place
    if SHARED:
        place = tl.load(places + row)
        length = tl.load(lengths + place)
    newest = tl.minimum(tl.maximum(start + position - length, start), slots - 1)
    newest = tl.where(seat < 0, start, newest)
    return seat, start, newest, place, length, position


@triton.jit(do_not_specialize=["length"])
def _rotate_and_keep(
    heads, scale, table, keys, values, starts, seats, positions, places, lengths, length, slots, epsilon,
    SHARED: tl.constexpr, SCALED: tl.constexpr, KV_HEADS: tl.constexpr, QUERIES: tl.constexpr, HEADS: tl.constexpr,
    SIZE: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    row, kv_head = tl.program_id(0), tl.program_id(1)
    seat, _, newest, _, _, position = _lies(row, starts, seats, positions, places, lengths, slots, SHARED)
    heads += (row * KV_HEADS + kv_head).to(tl.int64) * (QUERIES + 2) * SIZE
    kept = ((seat * KV_HEADS + kv_head).to(tl.int64) * slots + newest) * SIZE
    each, pair = tl.arange(0, HEADS)[:, None], tl.arange(0, PAIRS)[None, :]
    there = (each <= QUERIES) & (2 * pair < SIZE)
    at = each * SIZE + 2 * pair
    x = tl.load(heads + at, mask=there, other=0.0).to(tl.float32)
    y = tl.load(heads + at + 1, mask=there, other=0.0).to(tl.float32)
    if SCALED:
        shrink = tl.rsqrt(tl.sum(x * x + y * y, axis=1) / SIZE + epsilon)[:, None]
        x = x * shrink * tl.load(scale + at, mask=there, other=0.0).to(tl.float32)
        y = y * shrink * tl.load(scale + at + 1, mask=there, other=0.0).to(tl.float32)
    angle = table + tl.minimum(position, length - 1).to(tl.int64) * SIZE + 2 * pair
    cosine = tl.load(angle, mask=2 * pair < SIZE, other=0.0)
    sine = tl.load(angle + 1, mask=2 * pair < SIZE, other=0.0)
    rotated_x = nearest(x * cosine - y * sine, heads.dtype.element_ty)
    rotated_y = nearest(x * sine + y * cosine, heads.dtype.element_ty)
    is_query = there & (each < QUERIES)
    tl.store(heads + at, rotated_x, mask=is_query)
    tl.store(heads + at + 1, rotated_y, mask=is_query)
    is_key = there & (each == QUERIES) & (seat + each * 0 >= 0)
    to_key = keys + kept + 2 * pair + each * 0
    tl.store(to_key, rotated_x, mask=is_key)
    tl.store(to_key + 1, rotated_y, mask=is_key)
    coordinate = tl.arange(0, 2 * PAIRS)
    value = tl.load(heads + (QUERIES + 1) * SIZE + coordinate, mask=coordinate < SIZE, other=0.0)
    is_value = (coordinate < SIZE) & (seat + coordinate * 0 >= 0)
    tl.store(values + kept + coordinate, value, mask=is_value)


@triton.jit
def _over(
    query, keys, values, low, high, highest, total, mixed, scale,
    SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Continues a softmax over slots ``low`` to ``high``. Returns the highest score, Σ exp(s − highest) and the sum of
    values with these weights."""
    lane, coordinate = tl.arange(0, BLOCK), tl.arange(0, PADDED)
    for at in range(low, high, BLOCK):
        slot = at + lane
        there = (slot < high)[:, None] & (coordinate < SIZE)[None, :]
        where = slot[:, None] * SIZE + coordinate[None, :]
        key = tl.load(keys + where, mask=there, other=0.0)
        value = tl.load(values + where, mask=there, other=0.0)
        scores = plus_product(tl.zeros((query.shape[0], BLOCK), tl.float32), query, tl.trans(key)) * scale
        scores = tl.where((slot < high)[None, :], scores, float("-inf"))
        peak = tl.maximum(highest, tl.max(scores, axis=1))
        weights = tl.exp(scores - peak[:, None])
        shrink = tl.exp(highest - peak)
        total = total * shrink + tl.sum(weights, axis=1)
        rounded = nearest(weights, value.dtype)
        mixed = plus_product(mixed * shrink[:, None], rounded, value)
        if value.dtype != tl.float32:
            mixed = plus_product(mixed, nearest(weights - rounded.to(tl.float32), value.dtype), value)
        highest = peak
    return highest, total, mixed


@triton.jit
def _attend(
    heads, keys, values, prompt_keys, prompt_values, mixed, partial, logs,
    starts, seats, positions, places, lengths, slots, prompt_slots, scale,
    SHARED: tl.constexpr, KV_HEADS: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
    QUERIES: tl.constexpr, PADDED_QUERIES: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Program (batch, part): places ``low`` to ``high`` of the row, counted through its prompt, then its own slots."""
    batch, part = tl.program_id(0), tl.program_id(1)
    row, kv_head = batch // KV_HEADS, batch % KV_HEADS
    seat, start, newest, place, length, _ = _lies(row, starts, seats, positions, places, lengths, slots, SHARED)
    places_in_all = length + newest + 1 - start
    share = tl.cdiv(tl.cdiv(places_in_all, SPLITS), BLOCK) * BLOCK
    low = part * share
    high = tl.minimum(low + share, places_in_all)
    each, coordinate = tl.arange(0, PADDED_QUERIES)[:, None], tl.arange(0, PADDED)[None, :]
    there = (each < QUERIES) & (coordinate < SIZE)
    inside = each * SIZE + coordinate
    query = tl.load(heads + batch.to(tl.int64) * (QUERIES + 2) * SIZE + inside, mask=there, other=0.0)
    highest = tl.full((PADDED_QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((PADDED_QUERIES,), tl.float32)
    sums = tl.zeros((PADDED_QUERIES, PADDED), tl.float32)
    if SHARED:
        first = (place * KV_HEADS + kv_head).to(tl.int64) * prompt_slots * SIZE
        skipped = prompt_slots - length
        highest, total, sums = _over(
            query, prompt_keys + first, prompt_values + first, skipped + low, skipped + tl.minimum(high, length),
            highest, total, sums, scale, SIZE, PADDED, BLOCK,
        )  # fmt: skip
    first = (tl.maximum(seat, 0) * KV_HEADS + kv_head).to(tl.int64) * slots * SIZE
    before = start - length
    highest, total, sums = _over(
        query, keys + first, values + first, before + tl.maximum(low, length), before + high,
        highest, total, sums, scale, SIZE, PADDED, BLOCK,
    )  # fmt: skip
    if SPLITS == 1:
        result = nearest(sums / total[:, None], mixed.dtype.element_ty)
        tl.store(mixed + batch.to(tl.int64) * QUERIES * SIZE + inside, result, mask=there)
    else:
        here = batch.to(tl.int64) * SPLITS + part
        divisor = tl.where(total > 0, total, 1.0)  # a part without places has neither
        tl.store(partial + here * QUERIES * SIZE + inside, sums / divisor[:, None], mask=there)
        query_number = tl.arange(0, PADDED_QUERIES)
        tl.store(logs + here * QUERIES + query_number, highest + tl.log(divisor), mask=query_number < QUERIES)


@triton.jit
def _join(
    partial, logs, mixed,
    SPLITS: tl.constexpr, QUERIES: tl.constexpr, PADDED_QUERIES: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Joins the parts o_p with l_p = log Σ exp(s): o = Σ exp(l_p − max l) o_p / Σ exp(l_p − max l)."""
    batch = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, PADDED_QUERIES)
    each, coordinate = number[:, None], tl.arange(0, PADDED)[None, :]
    there = (each < QUERIES) & (coordinate < SIZE)
    inside = each * SIZE + coordinate
    highest = tl.full((PADDED_QUERIES,), float("-inf"), tl.float32)
    for part in tl.static_range(SPLITS):
        log = tl.load(logs + (batch * SPLITS + part) * QUERIES + number, mask=number < QUERIES, other=0.0)
        highest = tl.maximum(highest, log)
    total = tl.zeros((PADDED_QUERIES,), tl.float32)
    sums = tl.zeros((PADDED_QUERIES, PADDED), tl.float32)
    for part in tl.static_range(SPLITS):
        here = (batch * SPLITS + part) * QUERIES
        weight = tl.exp(tl.load(logs + here + number, mask=number < QUERIES, other=0.0) - highest)
        total += weight
        sums += weight[:, None] * tl.load(partial + here * SIZE + inside, mask=there, other=0.0)
    result = nearest(sums / total[:, None], mixed.dtype.element_ty)
    tl.store(mixed + batch * QUERIES * SIZE + inside, result, mask=there)
