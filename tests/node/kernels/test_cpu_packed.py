"""Attention of packed tokens against torch's own under a mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from node.kernels.training.cpu_packed import AttendPacked

SIZE = 20  # of a head: not a multiple of a vector


def spans_of(prompts: list[int], rows: list[tuple[int, int]]) -> NDArray[np.int64]:
    """``rows``: the prompt of each, and how many tokens follow it."""
    spans, ends = list[tuple[int, int, int]](), np.cumsum(prompts)
    for length in prompts:
        spans += [(0, 0, len(spans))] * length
    for prompt, length in rows:
        spans += [(int(ends[prompt]) - prompts[prompt], int(ends[prompt]), len(spans))] * length
    return np.array(spans, np.int64)


def with_gradients(attended: Tensor, leaves: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    slopes = torch.linspace(-1, 1, attended.numel(), dtype=attended.dtype).view_as(attended)
    return (attended.detach(), *torch.autograd.grad(attended, leaves, slopes))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("kv_heads", [1, 3, 6])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_each_token_attends_to_its_prompt_and_what_precedes_it_in_its_row(
    threads: int, kv_heads: int, dtype: torch.dtype, bound: float
) -> None:
    spans = spans_of([5, 1, 9], [(0, 3), (2, 4), (2, 1), (1, 6)])
    count, generator = len(spans), torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(count, heads, SIZE, generator=generator, dtype=dtype).mul_(3).requires_grad_()
        for heads in (6, kv_heads, kv_heads)
    )
    at, column = np.arange(count)[:, None], np.arange(count)
    begin, end, own = (spans[:, part, None] for part in range(3))
    seen = torch.from_numpy(((begin <= column) & (column < end)) | ((own <= column) & (column <= at)))
    q, k, v = (each.transpose(0, 1)[None] for each in (query, key, value))
    expected = scaled_dot_product_attention(q, k, v, seen, scale=0.3, enable_gqa=True)[0].transpose(0, 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = with_gradients(AttendPacked.apply(query, key, value, spans, 0.3), (query, key, value))
    finally:
        torch.set_num_threads(before)
    for ours, wanted in zip(found, with_gradients(expected, (query, key, value)), strict=True):
        torch.testing.assert_close(ours, wanted, atol=bound * float(wanted.abs().max()), rtol=0)


def test_large_scores_do_not_overflow_and_a_nan_stays_one() -> None:
    spans = spans_of([3], [(0, 2)])
    query, key, value = (torch.full((5, 1, SIZE), 30.0) for _ in range(3))
    assert torch.equal(AttendPacked.apply(query, key, value, spans, 1.0), value)
    query[1] = torch.nan
    assert AttendPacked.apply(query, key, value, spans, 1.0).isnan().flatten(1).any(1).tolist() == [
        False,
        True,
        *[False] * 3,
    ]
