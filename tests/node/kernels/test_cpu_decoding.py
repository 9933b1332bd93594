"""The compiled loops of a decoding step against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from node.engines.lean.attention import Past, by_products
from node.kernels.cpu_decoding import NO_OTHER_PART, NO_SCALE, attend, rms_norm, rotate_heads

KV_HEADS, QUERIES, SIZE, SLOTS = 2, 3, 8, 50


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def test_rms_norm_is_that_of_torch() -> None:
    x, weight, out = random(5, 24), random(24, seed=1), torch.empty(5, 24)
    rms_norm(x.numpy(), weight.numpy(), 1e-6, out.numpy())
    torch.testing.assert_close(out, functional.rms_norm(x, (24,), weight, 1e-6))


@pytest.mark.parametrize("normed", [False, True])
def test_heads_are_normed_and_rotated_and_values_left_alone(normed: bool) -> None:
    heads, scale = random(5, KV_HEADS, QUERIES + 2, SIZE), random(QUERIES + 1, SIZE, seed=1)
    turns = torch.polar(torch.ones(5, SIZE // 2), random(5, SIZE // 2, seed=2))
    rotated = functional.rms_norm(heads[:, :, :-1], (SIZE,), None, 1e-6) * scale if normed else heads[:, :, :-1]
    pairs = torch.view_as_complex(rotated.reshape(5, KV_HEADS, QUERIES + 1, -1, 2)) * turns[:, None, None]
    expected = torch.cat([torch.view_as_real(pairs).flatten(-2), heads[:, :, -1:]], 2)
    given = torch.view_as_real(turns).flatten(1).numpy()
    rotate_heads(heads.numpy(), scale.numpy() if normed else NO_SCALE, given, 1e-6)
    torch.testing.assert_close(heads, expected)


class Rows:
    """Five rows that began at different slots, the newest token in slot ``now``."""

    def __init__(self, *, now: int, scale: float = 1.0) -> None:
        self.now, self.rows = now, 5
        self.starts = np.array([0, now, now // 2, max(0, now - 17), max(0, now - 3)], dtype=np.int64)
        self.heads = random(self.rows, KV_HEADS, QUERIES + 2, SIZE) * scale
        self.keys, self.values = (random(self.rows, KV_HEADS, SLOTS, SIZE, seed=seed) * scale for seed in (1, 2))
        self.mixed = torch.full((self.rows, KV_HEADS, QUERIES, SIZE), 7.0)

    @property
    def queries(self) -> Tensor:
        return self.heads[:, :, :-2].flatten(0, 1)  # (rows × kv heads, queries, size)

    def past(self) -> Past:
        """Of all rows, the newest key and value included."""
        keys, values = self.keys.clone(), self.values.clone()
        keys[:, :, self.now], values[:, :, self.now] = self.heads[:, :, -2], self.heads[:, :, -1]
        unseen = torch.arange(SLOTS) < torch.from_numpy(self.starts)[:, None]
        unseen |= torch.arange(SLOTS) > self.now
        mask = torch.zeros(self.rows, SLOTS).masked_fill_(unseen, -torch.inf)
        return Past(
            keys.flatten(0, 1), values.flatten(0, 1), mask.repeat_interleave(KV_HEADS, 0).unsqueeze(1), masked=True
        )

    def attend(self, other: tuple[Tensor, Tensor, Tensor] | None = None, rows: int = 5) -> Tensor:
        stored = self.keys.transpose(-1, -2).contiguous()
        mixed, logs, places = NO_OTHER_PART if other is None else (each.numpy() for each in other)
        row_of, slots = np.arange(rows), np.full(rows, self.now)
        attend(
            self.heads.numpy(), stored.numpy(), self.values.numpy(), self.starts, row_of, slots, mixed, logs, places,
            self.mixed.numpy(),
        )  # fmt: skip
        self.keys = stored.transpose(-1, -2)
        return self.mixed.flatten(0, 1)


@pytest.mark.parametrize("now", [0, 1, 15, 16, 34, 49])
@pytest.mark.parametrize("scale", [1.0, 30.0])  # with 30, some weights are 0 in float32
def test_each_row_attends_to_its_own_slots_and_its_newest_token_is_kept(now: int, scale: float) -> None:
    rows = Rows(now=now, scale=scale)
    past = rows.past()
    expected, _ = by_products(rows.queries, past)
    torch.testing.assert_close(rows.attend(), expected, atol=1e-5 * scale, rtol=1e-4)
    assert torch.equal(rows.keys[:, :, now], rows.heads[:, :, -2])
    assert torch.equal(rows.values[:, :, now], rows.heads[:, :, -1])


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_own_slots_are_joined_to_attention_over_another_part(scale: float) -> None:
    rows = Rows(now=20, scale=scale)
    keys, values = (random(5 * KV_HEADS, 9, SIZE, seed=seed) * scale for seed in (3, 4))
    past = rows.past()
    seen = torch.cat([torch.zeros(5 * KV_HEADS, 1, 9), past.mask], 2)
    whole = Past(torch.cat([keys, past.keys], 1), torch.cat([values, past.values], 1), seen, masked=True)
    expected, _ = by_products(rows.queries, whole)
    order = torch.randperm(5 * KV_HEADS, generator=torch.Generator().manual_seed(5))
    other, logs = by_products(rows.queries[order], Past(keys[order], values[order], torch.zeros(1, 1, 9), masked=False))
    mixed = rows.attend((other, logs, torch.argsort(order)))
    torch.testing.assert_close(mixed, expected, atol=1e-5 * scale, rtol=1e-4)


def test_nan_stays_in_its_row_and_rows_that_are_not_asked_for_are_left_alone() -> None:
    rows = Rows(now=20)
    rows.heads[1, 0, 0, 3] = torch.nan
    rows.attend(rows=4)
    assert rows.mixed[1, 0, 0].isnan().all()
    assert rows.mixed.isnan().any(-1).sum() == 1
    assert (rows.mixed[4] == 7).all()
