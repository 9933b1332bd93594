"""The decode step's Triton kernels, run by the interpreter, agree with float64 within a bound that is derived.

Nothing but an output is rounded to the dtype: it is within half a unit in the last place of the exact one (2⁻⁸ of it in
bfloat16), and within the roundings of float32, which are those of Σ w |v|.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from node.kernels.decoding import triton_attention
from node.kernels.decoding.triton_attention import Rows, splits_for
from node.kernels.decoding.triton_mlp import ACTIVATIONS, gate

pytestmark = pytest.mark.usefixtures("by_triton")
UNIT: Final = MappingProxyType({torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-20})
TORCH_ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {"silu": functional.silu, "gelu": functional.gelu, "relu": functional.relu}
)


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A batch of rows with prompts and completions of these lengths, and what each row may see, in float64."""

    rows: Rows
    heads: Tensor
    seen_keys: list[Tensor]  # of each row (kv heads, tokens, size)
    seen_values: list[Tensor]


def case(
    lengths: list[tuple[int, int]], *, shared: bool, queries: int, size: int, dtype: torch.dtype, bias: float = 0.0,
    kv_heads: int = 2,
) -> Case:  # fmt: skip
    """``lengths``: of each row its prompt and its own tokens, the newest included. Rows r and r + 1 of an even r share
    a prompt. Rows lie in the opposite order, and the first seat is free. ``bias``: of one coordinate of all keys, as a
    trained bias makes it."""
    random = torch.Generator().manual_seed(len(lengths) * queries + size)
    normal = partial(torch.randn, generator=random)
    room, most = len(lengths) + 1, max(max(pair) for pair in lengths)
    slots = 2 * most + 3
    keys, values, prompt_keys, prompt_values = (normal(room, kv_heads, slots, size).to(dtype) for _ in range(4))
    keys[..., 0] += bias
    prompt_keys[..., 0] += bias
    heads = normal(len(lengths), kv_heads, queries + 2, size).to(dtype)
    starts, seats, positions, places = (torch.zeros(room, dtype=torch.int32) for _ in range(4))
    prompt_lengths = torch.zeros(room, dtype=torch.int32)
    seen_keys, seen_values = [], []
    for row, (prompt, own) in enumerate(lengths):
        place = row // 2
        prompt = lengths[place * 2][0] if shared else prompt
        seat = seats[row] = len(lengths) - row
        starts[seat], places[row], prompt_lengths[place] = row if shared else 3, place, prompt
        positions[row] = prompt + own - 1
        kept = own if shared else prompt + own
        own_slots = slice(int(starts[seat]), int(starts[seat]) + kept)
        parts = [(keys[seat, :, own_slots], values[seat, :, own_slots])]
        if shared:
            parts.append((prompt_keys[place, :, slots - prompt :], prompt_values[place, :, slots - prompt :]))
        seen_keys.append(torch.cat([key for key, _ in parts], dim=1).double())
        seen_values.append(torch.cat([value for _, value in parts], dim=1).double())
    rows = Rows(
        keys,
        values,
        starts,
        seats,
        positions.long(),
        prompt_keys if shared else None,
        prompt_values if shared else None,
        places,
        prompt_lengths,
    )
    return Case(rows, heads, seen_keys, seen_values)


def worst_error(found: Case, processors: int) -> float:
    """Returns the greatest error of an output, as a share of Σ w |v|."""
    mixed = triton_attention.attend(found.heads, found.rows, processors)
    worst = 0.0
    for row, (keys, values) in enumerate(zip(found.seen_keys, found.seen_values, strict=True)):
        query = found.heads[row, :, :-2].double()
        weights = torch.softmax(query @ keys.transpose(1, 2) / query.shape[-1] ** 0.5, dim=-1)
        error = (mixed[row].double() - weights @ values).abs() / (weights @ values.abs())
        worst = max(worst, float(error.max()))
    return worst


@pytest.mark.parametrize(
    ("queries", "dtype", "processors"),
    [(1, torch.bfloat16, 1), (2, torch.float32, 1), (7, torch.bfloat16, 30), (8, torch.float16, 1)],
)
@pytest.mark.parametrize("shared", [False, True])
def test_attention_over_rows_of_unlike_lengths_is_that_of_float64(
    queries: int, dtype: torch.dtype, processors: int, shared: bool
) -> None:
    lengths = [(1, 1), (5, 1), (70, 3), (9, 65), (64, 64), (3, 130)]
    found = case(lengths, shared=shared, queries=queries, size=24, dtype=dtype)
    assert worst_error(found, processors) <= UNIT[dtype]


@pytest.mark.parametrize("bias", [10.0, 150.0])
def test_a_large_bias_of_keys_costs_no_accuracy(bias: float) -> None:
    """Scores of bias² / √size cancel in the softmax: a product that is rounded to bfloat16 loses them."""
    for shared in (False, True):
        found = case([(40, 30), (40, 7)], shared=shared, queries=7, size=64, dtype=torch.bfloat16, bias=bias)
        assert worst_error(found, 1) <= UNIT[torch.bfloat16]


def test_a_row_of_four_thousand_tokens_is_read_in_parts_and_agrees() -> None:
    found = case([(2_500, 1_596)], shared=True, queries=2, size=16, dtype=torch.bfloat16, kv_heads=1)
    assert worst_error(found, 4) <= UNIT[torch.bfloat16]


def test_parts_depend_on_the_batch_and_the_room_alone_and_fill_the_processors() -> None:
    assert [splits_for(programs, 4096, 132) for programs in (1, 16, 64, 512)] == [16, 16, 4, 1]
    assert splits_for(1, 200, 132) == 1


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_keys_are_rotated_where_they_belong_and_values_copied_and_nothing_else_is_written(
    scaled: bool, shared: bool
) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        found = case([(4, 2), (9, 5), (1, 1)], shared=shared, queries=3, size=24, dtype=dtype)
        random = torch.Generator().manual_seed(1)
        scale = torch.rand(4, 24, generator=random).to(dtype) + 0.5 if scaled else None
        angles = torch.rand(30, 12, generator=random) * 7
        table = torch.view_as_real(torch.polar(torch.ones_like(angles), angles)).flatten(1).contiguous()
        before, expected = found.heads.clone(), rotated(found, scale, angles)
        keys, values = found.rows.keys.clone(), found.rows.values.clone()
        triton_attention.rotate_and_keep(found.heads, scale, table, 1e-6, found.rows)
        allowed = UNIT[dtype] * expected.abs() + 2.0**-20
        assert ((found.heads[:, :, :3].double() - expected[:, :, :3]).abs() <= allowed[:, :, :3]).all()
        assert torch.equal(found.heads[:, :, 3:], before[:, :, 3:])
        for row in range(3):
            length = int(found.rows.prompt_lengths[row // 2]) if shared else 0
            seat = int(found.rows.seats[row])
            slot = int(found.rows.starts[seat] + found.rows.positions[row]) - length
            assert ((found.rows.keys[seat, :, slot].double() - expected[row, :, 3]).abs() <= allowed[row, :, 3]).all()
            assert torch.equal(found.rows.values[seat, :, slot], before[row, :, 4])
            for cache, earlier in ((found.rows.keys, keys), (found.rows.values, values)):
                cache[seat, :, slot] = earlier[seat, :, slot]
        assert torch.equal(found.rows.keys, keys) and torch.equal(found.rows.values, values)


def test_of_a_row_without_a_seat_nothing_is_kept() -> None:
    found = case([(4, 2), (9, 5)], shared=True, queries=3, size=24, dtype=torch.float32)
    found.rows.seats.fill_(-1)
    keys, values = found.rows.keys.clone(), found.rows.values.clone()
    triton_attention.rotate_and_keep(found.heads, None, torch.ones(30, 24), 1e-6, found.rows)
    assert triton_attention.attend(found.heads, found.rows, 1).isfinite().all()
    assert torch.equal(found.rows.keys, keys) and torch.equal(found.rows.values, values)


def rotated(found: Case, scale: Tensor | None, angles: Tensor) -> Tensor:
    """Returns the queries and the key of each head, normed and rotated, in float64."""
    x = found.heads[:, :, :-1].double()
    if scale is not None:
        x = functional.rms_norm(x, x.shape[-1:], None, 1e-6) * scale.double()
    turn = torch.polar(torch.ones_like(angles), angles)[found.rows.positions[: len(x)]].to(torch.complex128)
    return torch.view_as_real(torch.view_as_complex(x.view(*x.shape[:-1], -1, 2)) * turn[:, None, None]).flatten(-2)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_gate_of_an_mlp_is_that_of_float64(activation: str, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    gates, ups = (torch.randn(3, 700, generator=random).to(dtype) for _ in range(2))
    expected = TORCH_ACTIVATIONS[activation](gates.double()) * ups.double()
    found = gate(gates, ups, activation).double()
    allowed = (UNIT[dtype] + 2**-20) * expected.abs() + 1e-7
    assert ((found - expected).abs() <= allowed).all()
