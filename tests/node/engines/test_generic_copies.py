"""How much the generic decoder writes when rows join and leave: each key and value about once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from node.engines.generic import GenericDecoder
from node.policy.policy import Policy


class BytesMade(TorchDispatchMode):
    """Counts the bytes of tensors that operations return with memory of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {each.untyped_storage().data_ptr() for each in args if isinstance(each, torch.Tensor)}
        if isinstance(out, torch.Tensor) and out.untyped_storage().data_ptr() not in given:
            self.bytes += out.nbytes
        return out


@pytest.mark.parametrize("name", ["gpt2", "mistral-sliding"])
def test_rows_that_join_or_leave_are_written_once(load_policy: Callable[..., Policy], name: str) -> None:
    decoder = GenericDecoder(load_policy(name).base)
    random = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        decoder.begin(16, [8, 8], 40, 8)
        first, second = (
            decoder.prefill([torch.randint(2, 40, (length,), generator=random).tolist()], [8]) for length in (40, 30)
        )
        for prefilled in (first, second):
            before = decoder.cache_bytes
            with BytesMade() as made:
                decoder.join(prefilled, [0] * 8)
            joined = decoder.cache_bytes - before
            assert made.bytes < 1.1 * (decoder.cache_bytes + joined), "the batch, and what joins it"
            decoder.step(torch.full((8 if prefilled is first else 16,), 3))
        with BytesMade() as made:
            decoder.leave([0, 1, 2, 3], [0, 1, 2, 3], [12, 13, 14, 15], 12)
        assert made.bytes < 1.1 * decoder.cache_bytes
