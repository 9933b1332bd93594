"""The rows of a tensor that one device holds: FSDP2 divides the first dimension as ``torch.chunk`` does."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


@torch.no_grad()
def shard_of(tensor: Tensor) -> Tensor:
    """Returns this device's rows of a tensor in shards, as a live view; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def rows_of(shape: Sequence[int], rank: int, devices: int) -> slice:
    """Returns the rows of a tensor of ``shape`` that device ``rank`` holds; none where there are fewer than devices."""
    rows = shape[0]
    each = -(-rows // devices)
    return slice(min(rank * each, rows), min((rank + 1) * each, rows))
