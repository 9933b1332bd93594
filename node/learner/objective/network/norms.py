"""RMS norms in one call each, on CUDA's cards.

transformers writes this norm as eight operations, some twenty with those of the backward pass. Where the host starts
every operation and the card waits for it, they are a third of a pass's time (``docs/gpu.md``). torch has one for each
direction. It rounds once, after the product with the weight, where the eight round before it as well.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from node.kernels.trial import differ

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS = 4  # of the trial
ROUNDINGS = 4.0  # ε of the dtype by which the two may differ, relative to the largest value


def use_one_call_norms(model: PreTrainedModel) -> int:
    """Makes every norm of ``model`` that computes x / √(mean x² + ε) ∘ w do so in one call. Returns how many do.

    Those whose weights are not in memory stay as they are. Whether one computes that is tried on random rows, not read
    off its name: Gemma's multiply by 1 + w.
    """
    found = 0
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm") and _is_plain(module):
            module.forward = MethodType(_in_one_call, module)
            found += 1
    return found


def _in_one_call(norm: Any, hidden_states: Tensor) -> Tensor:
    return rms_norm(hidden_states, norm.weight.shape, norm.weight, norm.variance_epsilon)


@torch.no_grad()
def _is_plain(norm: Any) -> bool:
    weight = getattr(norm, "weight", None)
    if (
        not isinstance(weight, Tensor)
        or weight.is_meta
        or weight.ndim != 1
        or not isinstance(getattr(norm, "variance_epsilon", None), float)
    ):
        return False
    rows = torch.randn(ROWS, len(weight), generator=torch.Generator().manual_seed(0)).to(weight.device, weight.dtype)
    wanted, ours = norm(rows), _in_one_call(norm, rows)
    return not differ(ours, wanted, ROUNDINGS * torch.finfo(weight.dtype).eps)
