"""Attention by lengths and its gradients, run by Triton's interpreter, agree with float64 within derived bounds.

With u half a unit in the last place (2⁻⁸ of a number in bfloat16): a weight is rounded once and the output once, so
that an output is off by u Σ w |v| + u |o|. A term of a sum over r = w (do·v − δ) is off by u |r| from its own rounding,
and by w · u Σ |do| |o| from δ, whose o was rounded. Each gradient is then rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

import pytest
import torch
from torch import Tensor

from node.kernels.training import attention_by_lengths as by_lengths
from node.kernels.training.attention_by_lengths import attend_by_lengths
from node.kernels.training.row_lengths import Heads, RowLengths
from node.kernels.training.triton_backward import parts_for

pytestmark = pytest.mark.usefixtures("by_triton")
# Half a unit in the last place, and what sums in float32 and powers of scores of some thousands add to it.
ROUNDING: Final = MappingProxyType({torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-21})
FLOAT32: Final = 2.0**-19


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    heads: Heads  # as a model lays them out
    slope: Tensor  # (B, T, H, d), of the output; 0 for padding
    rows: RowLengths
    earlier: int  # own columns before the first query


def case(
    prompt_lengths: list[int], completions: list[list[int]], *, queries: int, size: int, dtype: torch.dtype,
    earlier: int = 0, bias: float = 0.0, kv_heads: int = 2,
) -> Case:  # fmt: skip
    """``completions``: of each prompt the lengths of its completions, in columns from the first of ``earlier`` on.
    Padding is NaN: whoever reads it, shows it."""
    prompt_of = [prompt for prompt, each in enumerate(completions) for _ in each]
    lengths = [length for each in completions for length in each]
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(size + queries + len(lengths)))
    columns, prompt_columns = max(lengths) + 1, max(prompt_lengths) + 2
    tokens = columns - earlier

    def laid_out(rows: list[int], width: int, heads: int, biased: bool = False) -> Tensor:
        made = normal(len(rows), width, heads, size)
        made[..., 0] += bias if biased else 0.0
        for row, length in enumerate(rows):
            made[row, max(length, 0) :] = torch.nan
        return made.to(dtype).transpose(1, 2)

    asked = laid_out([length - earlier for length in lengths], tokens, kv_heads * queries)
    own = [laid_out(lengths, columns, kv_heads, biased) for biased in (True, False)]
    shared = [laid_out(prompt_lengths, prompt_columns, kv_heads, biased) for biased in (True, False)]
    slope = normal(len(lengths), tokens, kv_heads * queries, size).to(dtype)
    for row, length in enumerate(lengths):
        slope[row, max(length - earlier, 0) :] = 0
    rows = RowLengths.of(torch.tensor(prompt_of), torch.tensor(lengths), torch.tensor(prompt_lengths))
    return Case(Heads(asked, own[0], own[1], shared[0], shared[1]), slope, rows, earlier)


def agrees(found: Case, dtype: torch.dtype) -> None:
    """Asserts that the output and all gradients are within their bounds, and those of padding 0."""
    tensors = [each.detach().requires_grad_() for each in found.heads]
    scale = tensors[0].shape[3] ** -0.5
    mixed = attend_by_lengths(Heads(*tensors), found.rows, scale)
    gradients = torch.autograd.grad(mixed, tensors, found.slope)
    wanted, allowed = torch.zeros_like(mixed, dtype=torch.float64), torch.zeros_like(mixed, dtype=torch.float64)
    slopes = [torch.zeros_like(each, dtype=torch.float64) for each in tensors]
    bounds = [torch.zeros_like(each, dtype=torch.float64) for each in tensors]
    unit = ROUNDING[dtype]
    for row, (prompt, length) in enumerate(
        zip(found.rows.prompt_of.tolist(), found.rows.lengths.tolist(), strict=True)
    ):
        many = length - found.earlier
        if many <= 0:
            continue
        shared = int(found.rows.prompt_lengths[prompt])
        places = ((row, slice(many)), (row, slice(length)), (row, slice(length)), (prompt, slice(shared)))
        query, *own, prompt_keys, prompt_values = (
            tensor.detach()[index][:, columns].double()
            for tensor, (index, columns) in zip(tensors, (*places, places[3]), strict=True)
        )
        group = query.shape[0] // prompt_keys.shape[0]
        key = torch.cat([prompt_keys, own[0]], 1).repeat_interleave(group, 0)  # (H, shared + length, d)
        value = torch.cat([prompt_values, own[1]], 1).repeat_interleave(group, 0)
        hidden = torch.ones(many, shared + length, dtype=torch.bool).triu(shared + found.earlier + 1)
        weights = (query @ key.mT * scale).masked_fill(hidden, -torch.inf).softmax(-1)
        output, slope = weights @ value, found.slope[row, :many].transpose(0, 1).double()
        wanted[row, :many] = output.transpose(0, 1)
        allowed[row, :many] = (unit * (weights @ value.abs() + output.abs())).transpose(0, 1)
        r = weights * (slope @ value.mT - (slope * output).sum(-1, keepdim=True))
        magnitude = slope.abs() @ value.abs().mT + (slope * output).abs().sum(-1, keepdim=True)
        off = unit * (r.abs() + weights * (slope * output).abs().sum(-1, keepdim=True)) + FLOAT32 * weights * magnitude
        key_slope, key_off = (scale * left.mT @ right for left, right in ((r, query), (off, query.abs())))
        value_slope, value_off = (left.mT @ right for left, right in ((weights, slope), (unit * weights, slope.abs())))
        away = (key - key[:, :1]).abs()
        slopes[0][row, :, :many] = scale * r @ key
        bounds[0][row, :, :many] = scale * off @ away
        for which, of_all in enumerate((key_slope, value_slope, key_off, value_off)):
            summed = of_all.unflatten(0, (-1, group)).sum(1)  # (kv heads, shared + length, d)
            targets = slopes if which < 2 else bounds
            targets[3 + which % 2][prompt, :, :shared] += summed[:, :shared]
            targets[1 + which % 2][row, :, :length] = summed[:, shared:]
    error = (mixed.detach().double() - wanted).abs()
    assert (error <= allowed + FLOAT32 * allowed / unit).all(), float((error / allowed).nan_to_num().max())
    for name, got, exact, bound in zip(Heads._fields, gradients, slopes, bounds, strict=True):
        error = (got.double() - exact).abs()
        whole = 1.5 * bound + unit * exact.abs()  # 1.5: a bound of one rounding, met by the next ones
        assert (error <= whole).all(), (name, float((error / whole).nan_to_num().max()))


@pytest.mark.parametrize(
    ("queries", "dtype"), [(1, torch.bfloat16), (2, torch.float32), (7, torch.bfloat16), (8, torch.float32)]
)
def test_ragged_rows_and_their_gradients_are_those_of_float64(queries: int, dtype: torch.dtype) -> None:
    found = case([5, 70, 64, 1], [[9, 0], [33], [], [12]], queries=queries, size=24, dtype=dtype)
    agrees(found, dtype)


def test_float16_agrees_as_well() -> None:
    agrees(case([3, 66], [[4, 7], [2]], queries=4, size=16, dtype=torch.float16), torch.float16)


def test_rows_longer_than_several_blocks_agree_where_nothing_is_masked() -> None:
    agrees(case([130], [[150, 70]], queries=2, size=16, dtype=torch.bfloat16, kv_heads=1), torch.bfloat16)


def test_queries_after_earlier_columns_of_their_row_see_these_and_give_them_gradients() -> None:
    """As the later pieces of rows that are computed again in pieces."""
    found = case([40, 7], [[70, 66, 60], [90]], queries=3, size=16, dtype=torch.float32, earlier=65)
    agrees(found, torch.float32)


def test_a_bias_that_all_keys_share_costs_no_accuracy() -> None:
    agrees(case([40], [[30, 7]], queries=7, size=64, dtype=torch.bfloat16, bias=150.0), torch.bfloat16)


def test_a_prompts_gradients_are_summed_in_parts_where_prompts_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [parts_for(programs, 256, 132) for programs in (1, 16, 100, 512)] == [16, 16, 4, 1]
    assert parts_for(1, 1, 132) == 1 and parts_for(1, 5, 132) == 4
    monkeypatch.setattr(by_lengths, "_processors", lambda _: 16)
    found = case([9, 20], [[5, 3, 8, 1, 0, 2], [4]], queries=2, size=16, dtype=torch.bfloat16)
    agrees(found, torch.bfloat16)
