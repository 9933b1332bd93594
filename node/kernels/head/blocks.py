"""How many tokens and words of the vocabulary one block of logits has."""

from __future__ import annotations

from typing import Final

import torch

from node.kernels.dispatch import is_gpu

CPU_BLOCK: Final = (1024, 1024)
"""4 MiB of float32: large enough for full matrix speed, small enough to stay in cache."""
GPU_WORDS: Final = 8192  # one row of a block lies in the registers of one program
GPU_SHARE: Final = 32  # a block may take this share, one in so many, of a card
_LOGIT_BYTES: Final = 6  # float32, and bf16 beside it
_LEAST_TOKENS: Final = 128
_MOST_BYTES: Final = 192 << 20  # 4096 tokens: the products of larger blocks are no faster


def block_shape_for(device: torch.device) -> tuple[int, int]:
    """Returns tokens and words of a block of logits on this device. It is the same at every call: sums over blocks
    would otherwise differ with what else is in memory."""
    return gpu_block_shape(allowed_bytes(device)) if is_gpu(device) else CPU_BLOCK


def gpu_block_shape(allowed_bytes: int) -> tuple[int, int]:
    """Returns tokens and words of a block, each a power of two, on a GPU of which a process may have so many bytes."""
    bytes_a_token = GPU_WORDS * _LOGIT_BYTES
    tokens = min(allowed_bytes // GPU_SHARE, _MOST_BYTES) // bytes_a_token
    return max(_LEAST_TOKENS, 1 << max(0, tokens.bit_length() - 1)), GPU_WORDS


def allowed_bytes(device: torch.device) -> int:
    """Returns what this process may allocate on a GPU in all; 0 for another device."""
    if device.type != "cuda":
        return 0
    total = torch.cuda.get_device_properties(device).total_memory
    return int(total * torch.cuda.get_per_process_memory_fraction(device))
