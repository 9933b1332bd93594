"""Where the windows of attention masks begin on a device whose kernels read masks in steps of 16 bytes.

torch's ``meta`` device stands for the GPU: it has shapes, strides and offsets, and no values.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from node.engines.lean.attention import MASK_ALIGNMENT, by_products, empty_mask
from node.engines.lean.seated_prompts import SeatedPrompts
from node.engines.lean.timeline import RowTimeline

META = torch.device("meta")
LAYERS, ROWS, KV_HEADS, SIZE = 1, 6, 2, 8


def cache(slots: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    keys, values = (torch.zeros(LAYERS, ROWS, KV_HEADS, slots, SIZE, dtype=torch.bfloat16, device=device) for _ in "kv")
    return keys, values, empty_mask(ROWS, KV_HEADS, slots, torch.bfloat16, device)


def is_aligned(mask: Tensor) -> bool:
    return all(n % MASK_ALIGNMENT == 0 for n in (mask.storage_offset(), mask.stride(0)))


@pytest.mark.parametrize("slots", [61, 64])
def test_every_window_of_a_timeline_begins_aligned_and_holds_the_slots_that_rows_need(slots: int) -> None:
    timeline = RowTimeline(*cache(slots, META), lead=13)
    timeline.join([13, 5, 9])
    for step in range(100):
        timeline.make_room()
        past = timeline.past(0, timeline.rows * KV_HEADS)
        first = timeline.now + 1 - past.mask.shape[-1]
        assert is_aligned(past.mask) and 0 <= first <= timeline.starts[: timeline.rows].min()
        assert past.masked or bool((timeline.starts[: timeline.rows] == first).all())
        timeline.advance(1)
        if step % 12 == 11:  # the row that began first ends, another joins
            hole = int(timeline.starts[:3].argmin())
            moved = ([hole], [2]) if hole < 2 else ([], [])
            timeline.leave(torch.tensor(moved[0]), torch.tensor(moved[1]), moved, 2)
            timeline.join([11])


def test_every_window_of_shared_prompts_begins_aligned() -> None:
    prompts = SeatedPrompts(*cache(61, META), rows=ROWS, attention=by_products)
    rng = np.random.default_rng(0)
    for _ in range(3):
        _, names = prompts.add(rng.integers(1, 61, 2).tolist(), [1, 1])
        prompts.join(slice(0, len(names)), names)
        window = prompts._batch_mask[:, :, prompts._first : 61]
        assert is_aligned(window) and prompts._first <= 61 - prompts._lengths[: prompts._held].max()
        prompts.leave([0, 1], [], [], 0)


def test_on_a_cpu_a_window_has_no_slot_that_no_row_needs() -> None:
    timeline = RowTimeline(*cache(64, torch.device("cpu")), lead=13)
    timeline.join([5, 3])
    assert timeline.past(0, 2 * KV_HEADS).mask.shape[-1] == 6
