"""How much of a batch one forward and backward pass takes at once, and what it keeps for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PassSettings:
    """Memory against time; log-probabilities and gradients are the same for every choice, up to rounding."""

    batch_tokens: int  # padded tokens of one micro-batch, at most, unless a single completion is longer
    recompute: bool = False
    """Keep only what enters each layer, and compute the layer again in the backward pass: about a third more time."""
    chunk_tokens: int | None = None
    """With ``recompute``: run a layer on so many tokens at a time, of one row or of several. None: on all of them."""

    def __post_init__(self) -> None:
        if self.batch_tokens < 1 or (self.chunk_tokens is not None and self.chunk_tokens < 1):
            raise ValueError(f"batch_tokens {self.batch_tokens} and chunk_tokens {self.chunk_tokens} must be positive")


WHOLE: Final = PassSettings(batch_tokens=8192)  # what every model can do: nothing is recomputed
