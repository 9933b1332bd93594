"""A base model in 4 bits under an adapter: QLoRA (Dettmers and others, arXiv 2305.14314), by bitsandbytes.

NF4 in blocks of 64, their scales in 8 bits again: 4.13 bits a weight. The embedding, the head and the norms stay whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

from protocol.errors import ConfigurationError

# What bitsandbytes' layers and weights in 4 bits have, and no others: a start that does not import it is .1 s shorter.
_REPACKS: Final = "support_avx512bf16_for_cpu"
_SCALES: Final = "quant_state"


def check_four_bit(adapter_rank: int, device: torch.device) -> None:
    """Raises ``ConfigurationError`` where a base in 4 bits could not be trained."""
    if adapter_rank == 0:
        raise ConfigurationError(
            "policy.four_bit is true and policy.adapter_rank 0: weights in 4 bits cannot be trained themselves; set "
            "adapter_rank, for example to 16"
        )
    if device.type not in ("cpu", "cuda"):
        raise ConfigurationError(
            f"policy.four_bit is true, which works on CUDA and on the CPU, and the device is {device.type}: set "
            "four_bit = false"
        )


def keep_differentiable(model: torch.nn.Module) -> None:
    """Keeps bitsandbytes from repacking weights for inference on CPUs with bfloat16 instructions.

    It would at the first pass in evaluation mode, which a policy is always in, and the repacked product has no
    gradient: what lies below it would learn from a wrong one, with a warning at most.
    """
    for module in model.modules():
        if hasattr(module, _REPACKS):
            setattr(module, _REPACKS, False)


def weights_of(parameter: torch.nn.Parameter) -> int:
    """Returns how many weights the parameter stands for: in 4 bits, two for each element."""
    state = getattr(parameter, _SCALES, None)
    return parameter.numel() if state is None else int(state.shape.numel())


def unpacked(weight: torch.Tensor) -> torch.Tensor:
    """Returns a weight in 4 bits as the matrix that it stands for; any other as it is."""
    state = getattr(weight, _SCALES, None)
    if state is None:
        return weight
    from bitsandbytes.functional import dequantize_4bit

    matrix: torch.Tensor = dequantize_4bit(weight.data, state)
    return matrix


def quantization_states(model: torch.nn.Module) -> Iterator[Any]:
    """Yields the scales of all weights in 4 bits, which never change. The layers hold them beside their weights."""
    for parameter in model.parameters():
        if hasattr(parameter, _SCALES):
            yield getattr(parameter, _SCALES)
