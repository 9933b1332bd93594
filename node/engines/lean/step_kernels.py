"""A decode step by the kernels of ``node.kernels.decoding``, on a device for which Triton compiles.

A layer takes eleven launches, of which one joins the parts of attention where few rows are read in several:
norm · queries, keys, values · rotate and keep · attend (· join) · output · norm · gate · up · their product · down.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from node.engines.lean.architectures import ModelShape
from node.engines.lean.device_rows import DevicePass, DevicePrompts, DeviceRows
from node.kernels.dispatch import is_for_triton
from node.kernels.trial import agrees


class StepKernels:
    def __init__(self, shape: ModelShape, device: torch.device) -> None:
        self._shape = shape
        self._processors = _processors(device)

    def attend(
        self,
        heads: Tensor,
        head_scale: Tensor | None,
        table: Tensor,
        layer: int,
        rows: DeviceRows,
        prompts: DevicePrompts | None,
        of_pass: DevicePass,
    ) -> Tensor:
        """Norms and rotates queries and keys in ``heads``, (n, kv heads, queries + 2, size), in place, and keeps keys
        and values. Returns attention's output over each row's past, (n, query heads × size).

        ``table`` as of ``rotate_and_keep``.
        """
        from node.kernels.decoding.triton_attention import Rows, attend, rotate_and_keep

        held = Rows(
            rows.layer_keys[layer],
            rows.layer_values[layer],
            rows.device_starts,
            of_pass.seats,
            of_pass.positions,
            None if prompts is None else prompts.layer_keys[layer],
            None if prompts is None else prompts.layer_values[layer],
            of_pass.seats if of_pass.places is None else of_pass.places,
            of_pass.seats if prompts is None else prompts.device_lengths,
        )
        rotate_and_keep(heads, head_scale, table, self._shape.epsilon, held)
        return attend(heads, held, self._processors).flatten(1)

    def gate(self, gates: Tensor, ups: Tensor) -> Tensor:
        """Returns activation(``gates``) ∘ ``ups``, (n, inner), and may write to ``gates``."""
        from node.kernels.decoding.triton_mlp import gate

        return gate(gates, ups, self._shape.activation)


def step_kernels_for(shape: ModelShape, device: torch.device, dtype: torch.dtype) -> StepKernels | None:
    """Returns the kernels if Triton compiles for the device, and there they compute what torch does."""
    if not is_for_triton(device) or not _agree(shape.queries, shape.head_size, device, dtype):
        return None
    return StepKernels(shape, device)


@cache
def _agree(queries: int, size: int, device: torch.device, dtype: torch.dtype) -> bool:
    def disagreement() -> str | None:
        from node.kernels.decoding.agreement import disagreement

        return disagreement(queries, size, device, dtype)

    return agrees("generating", device, disagreement)


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
