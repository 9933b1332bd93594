"""Whether the process that answers fits beside the learner. Pure functions of bytes; imports no torch.

need = weights (1 + share trained) + the checkpoint, as it is read + OVERHEAD_BYTES
room = what is free - what the learner has planned and not taken yet
"""

from __future__ import annotations

from typing import Final

from node.fit.candidates import Trained
from node.fit.model_sizes import ModelSizes
from node.quantities import size

FLOAT_BYTES: Final = 4  # a CPU computes in float32 by default; half of it where bfloat16 is configured
OVERHEAD_BYTES: Final = 800_000_000  # Python, torch, transformers, and what one answer takes


def needed_bytes(sizes: ModelSizes, trained: Trained | None, checkpoint_bytes: int) -> int:
    """Returns the main memory of a base model with what a checkpoint made of it, at most. ``trained``: None where there
    is no checkpoint."""
    copies = 0 if trained is None else sizes.adapter_parameters(trained.adapter_rank) or sizes.parameters
    return FLOAT_BYTES * (sizes.parameters + copies) + checkpoint_bytes + OVERHEAD_BYTES


def room_bytes(free_bytes: int, *, planned_bytes: int, held_bytes: int) -> int:
    """Returns what is left of ``free_bytes`` once the learner, which holds ``held_bytes``, has what it planned."""
    return free_bytes - max(0, planned_bytes - held_bytes)


def no_room(need_bytes: int, left_bytes: int) -> str | None:
    """Returns why the process is not started; None where it fits."""
    if need_bytes <= left_bytes:
        return None
    return (
        f"answering takes up to {size(need_bytes)} of memory, and the learner leaves {size(max(0, left_bytes))}: pause "
        "the node and ask again, or run starling try on a machine with more"
    )
