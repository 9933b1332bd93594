from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from node.engines.lean.attention import Attention, Past, by_fused_cpu_kernel, by_products, joined


@pytest.mark.parametrize("attention", [by_products, by_fused_cpu_kernel])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_two_parts_of_the_past_joined_are_attention_over_both(
    attention: Attention, dtype: torch.dtype, masked: bool
) -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator).mul_(2).to(dtype)

    queries, keys, values = random(6, 5, 16), random(6, 40, 16), random(6, 40, 16)
    mask = torch.zeros(6, 1, 40, dtype=dtype)
    if masked:
        mask[2, :, :7], mask[4, :, 33:] = -torch.inf, -torch.inf
    whole = functional.scaled_dot_product_attention(queries.float(), keys.float(), values.float(), mask.float())
    parts = [
        attention(queries, Past(keys[:, part], values[:, part], mask[:, :, part], masked))
        for part in (slice(0, 30), slice(30, 40))
    ]
    result = joined(*parts[0], *parts[1])
    assert result.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 0.06
    torch.testing.assert_close(result.float(), whole, atol=tolerance, rtol=0)


def test_part_that_weighs_nothing_beside_the_other_leaves_the_other_alone() -> None:
    one, other = torch.ones(1, 1, 4), torch.full((1, 1, 4), 2.0)
    assert torch.equal(joined(one, torch.full((1, 1, 1), 300.0), other, torch.full((1, 1, 1), -300.0)), one)
    assert torch.equal(joined(one, torch.full((1, 1, 1), -300.0), other, torch.full((1, 1, 1), 300.0)), other)


def test_large_bias_of_keys_costs_no_more_than_the_rounding_of_weights_and_result() -> None:
    random = torch.Generator().manual_seed(3)
    queries, keys, values = (torch.randn(2, 40, 64, generator=random).bfloat16() for _ in range(3))
    keys[..., 0] += 150
    past = Past(keys, values, torch.zeros(2, 1, 40, dtype=torch.bfloat16), masked=False)
    mixed, _ = by_products(queries, past)
    weights = torch.softmax(queries.double() @ keys.double().transpose(1, 2) / 8, dim=-1)
    error = (mixed.double() - weights @ values.double()).abs() / (weights @ values.double().abs())
    assert error.max() <= 2 * 2.0**-8
