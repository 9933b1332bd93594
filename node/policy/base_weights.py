"""The weights of a model as they are in its files: their hash, and that every one of them is a number."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import torch

from node.policy.model_files import weight_files
from node.policy.safetensors_header import StoredTensor, read_header
from protocol.errors import ConfigurationError

CHUNK_BYTES: Final = 1 << 22  # read at once
_FLOATS: Final = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def stored_tensors(folder: Path) -> dict[str, tuple[Path, StoredTensor]]:
    """Returns every tensor of the model in ``folder``, by name, with its file.

    Raises ``ConfigurationError`` if a file is missing, or is not safetensors.
    """
    return {name: (path, tensor) for path in weight_files(folder) for name, tensor in read_header(path).items()}


def base_weights_digest(folder: Path) -> bytes:
    """Returns SHA-256 over each tensor's name, dtype, shape and bytes, sorted by name, over all files of the model.

    Raises ``ConfigurationError`` if ``folder`` holds no readable safetensors, or a weight that is NaN or infinite. The
    files are read in chunks rather than mapped: pages that were looked at would count as this process's memory.
    """
    tensors = stored_tensors(folder)
    digest = hashlib.sha256(b"starling/base-weights/1\0")
    chunk = bytearray(CHUNK_BYTES)
    for name in sorted(tensors):
        path, tensor = tensors[name]
        kind = f"{tensor.dtype}{list(tensor.shape)}"
        digest.update(f"{name}\0{kind}\0".encode() + _checked_digest(name, path, tensor, chunk))
    return digest.digest()


def _checked_digest(name: str, path: Path, tensor: StoredTensor, chunk: bytearray) -> bytes:
    """Returns SHA-256 of the tensor's bytes, which pass through ``chunk``."""
    digest = hashlib.sha256()
    dtype = _FLOATS.get(tensor.dtype)
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(tensor.begin)
            left = tensor.end - tensor.begin
            while left:
                part = memoryview(chunk)[: min(left, CHUNK_BYTES)]
                if file.readinto(part) != len(part):
                    raise OSError(f"it ended {left:,} bytes too early")
                digest.update(part)
                if dtype is not None and not all_finite(torch.frombuffer(part, dtype=dtype)):
                    raise ConfigurationError(
                        f"{path}: the tensor {name} has weights that are NaN or infinite: fetch the model again, or "
                        "choose another policy.model"
                    )
                left -= len(part)
    except OSError as error:
        raise ConfigurationError(f"{path} is not readable ({error}): fetch the model again") from error
    return digest.digest()


def all_finite(tensor: torch.Tensor) -> bool:
    """Returns whether no value is NaN or infinite, without a copy as large as the tensor, which has elements."""
    lowest, highest = tensor.aminmax()  # NaN if any value is
    return bool(torch.isfinite(lowest) & torch.isfinite(highest))
