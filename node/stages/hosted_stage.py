"""What a process that holds layers for an owner must offer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from node.stages.link import StageLink


class HostedStage(StageLink, Protocol):
    """The layers themselves, called from one thread at a time. Before anything is held it has no memory of weights. An
    error other than ``ConfigurationError``, and that memory has run out, leaves it in an unknown state."""

    @property
    def family(self) -> bytes:
        """Of the model in this machine's folder, with an adapter as the owner has it."""

    @property
    def layers(self) -> int:
        """That the whole model has."""

    @property
    def width(self) -> int:
        """Of hidden states."""

    @property
    def dtype(self) -> torch.dtype:
        """Of hidden states."""

    @property
    def context(self) -> int | None:
        """The positions that the model has, where that is known."""

    def factors(self) -> Mapping[str, tuple[int, ...]]:
        """Returns the shapes of the factors of the layers that are held, by name."""
