"""What names the random numbers of a draw (``keyed_draw`` has the definition)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torch import Tensor

BLOCK: Final = 4096  # tokens
BLOCK_DRAWS: Final = 1 << 31  # counters of blocks begin here: no vocabulary reaches it


@dataclass(frozen=True, slots=True, eq=False)
class DrawKeys:
    """Names the random numbers of each row. All tensors are int64 and lie on the device of the logits."""

    seed: Tensor  # (1,)
    completions: Tensor  # (n,) a number of each row's completion that no other completion under this seed has
    steps: Tensor  # (n,) 0 ≤ step < 2^32, tokens that the completion has had before
