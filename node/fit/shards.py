"""What a learner on several devices divides, and what each of them holds besides. Pure.

Weights, gradients and moments are divided: a GPU holds one part of as many as there are devices. On a CPU the parts of
all processes lie in the same main memory, and together are one whole; what each process holds for itself (its pass,
the layers that are gathered when they run) is there once for each.

Gathered: embedding and head for as long as a pass lasts, and of a layer its weights, the buffer that they came in,
those of the next one, its gradient, and the float32 buffer in which that is reduced. Measured by
``scripts.bench.sharded``: 0.31 GB beyond a half of everything, for layers of 57 MB and a tied embedding of 17 MB.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from node.fit.activations import ELEMENT_BYTES, FLOAT_BYTES
from node.fit.model_sizes import ModelSizes
from node.fit.settings import MemorySettings

GATHERED_LAYERS: Final = 5  # in float32; of frozen layers no gradient is reduced
GATHERED_FROZEN_LAYERS: Final = 3
DIVIDED: Final = frozenset({"gradients"})  # parts of a phase; all others are of each process


class Shards(Struct, frozen=True):
    devices: int
    on_cards: bool  # each device has memory of its own

    @property
    def has_engine_card(self) -> bool:
        """Whether the engine has a GPU that the learner does not use."""
        return self.on_cards and self.devices > 1

    def share(self, amount: int) -> int:
        """Returns the bytes of what is divided, in one place: a GPU, or main memory."""
        return -(-amount // self.devices) if self.on_cards else amount

    def of_a_place(self, parts: Mapping[str, int]) -> dict[str, int]:
        """Returns the parts of a phase as they are in one place."""
        processes = 1 if self.on_cards else self.devices
        return {name: self.share(each) if name in DIVIDED else each * processes for name, each in parts.items()}


def gathered_bytes(sizes: ModelSizes, settings: MemorySettings) -> int:
    """Returns what each device holds whole at the peak of a pass."""
    width = ELEMENT_BYTES[settings.dtype]
    ends = width * (sizes.embedding_parameters + sizes.head_parameters)
    if settings.adapter_rank:
        return ends + GATHERED_FROZEN_LAYERS * width * sizes.layer_parameters
    return ends + GATHERED_LAYERS * FLOAT_BYTES * sizes.layer_parameters
