"""What each kind of ``learner.optimizer`` costs in memory.

    bytes per trained parameter      "adamw"    "adamw8bit"    "host"
    master, for a bfloat16 policy    4          4              4, on the host
    master, for a float32 policy     0          0              4, on the host
    both moments                     8          2 + 8/256      8, on the host

The weights themselves and the gradients are not in it. A step needs ``STEP_BYTES`` besides, at most.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from node.configuration import DtypeName, OptimizerName

BLOCK: Final = 256  # moments that share a scale, as in bitsandbytes
# Tensors with fewer weights (norms, biases) keep float32 moments, as in bitsandbytes: they hardly cost anything.
SMALLEST_IN_8_BITS: Final = 4096
SLICE_ELEMENTS: Final = 1 << 20  # of a tensor that a step handles at once; whole blocks
SLICES_ON_A_CARD: Final = 5  # at once there, where a step needs six bytes besides for each of their elements
STEP_BYTES: Final = 8 * 4 * SLICE_ELEMENTS  # the gradient of a slice, and what the CPU's 8-bit step keeps besides


class OptimizerBytes(Struct, frozen=True):
    device: int  # where the weights are
    host: int  # in main memory; 0 unless the kind is "host"


def optimizer_bytes(kind: OptimizerName, parameters: int, weight_dtype: DtypeName) -> OptimizerBytes:
    """Returns what masters and moments of so many trained ``parameters`` hold.

    "host" is for a policy on a GPU; on the CPU it is "adamw". Tensors below ``SMALLEST_IN_8_BITS`` are taken for large
    ones.
    """
    master = 4 * parameters if weight_dtype != "float32" else 0
    if kind == "host":
        return OptimizerBytes(device=0, host=12 * parameters)
    if kind == "adamw8bit":
        blocks = -(-parameters // BLOCK)
        return OptimizerBytes(device=master + 2 * parameters + 8 * blocks, host=0)
    return OptimizerBytes(device=master + 8 * parameters, host=0)
