"""What a message of torch's about memory or a GPU means for a node. Pure functions of the message; imports no torch.

torch raises ``RuntimeError`` for nearly everything (``OutOfMemoryError`` and ``AcceleratorError`` are such), and what
can be done differs: out of memory, less of it may do; after a fault of the GPU nothing works in this process any more,
and a new one may find the GPU well again.
"""

from __future__ import annotations

import errno
from typing import Final

from protocol.errors import AcceleratorError

MAX_DETAIL_CHARACTERS: Final = 300
_OUT_OF_MEMORY: Final = (
    "out of memory",  # CUDA, HIP and MPS: "CUDA out of memory", "CUDA error: out of memory"
    "not enough memory",  # "DefaultCPUAllocator: not enough memory", and Windows
    "cannot allocate memory",  # ENOMEM, of a file that is mapped
    "status_alloc_failed",  # cuBLAS, cuDNN
    "cublas_status_not_initialized",  # cublasCreate, where the card has no room for its workspace
    "std::bad_alloc",  # of an extension that does not translate it
    "can't allocate memory",  # "[enforce fail at alloc_cpu.cpp…] DefaultCPUAllocator: can't allocate memory"
    "could not create a primitive",  # oneDNN, which does not say why; seen where its code or scratch finds no room
    "could not create a memory object",
    "could not execute a primitive",
)
_ACCELERATOR: Final = (
    "cuda error",
    "cuda driver error",
    "hip error",
    "triton error [",
    "cudnn error",
    "cudnn_frontend",
    "cudnn frontend",
    "cudnn_status",
    "cublas_status",
    "cusolver_status",
    "no cuda gpus are available",
    "no cuda-capable device",
    "found no nvidia driver",
    "nvml error",
    "mps backend error",
    "device-side assert",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an allocation failed, on the host or on a GPU.

    PyTorch reports it as ``torch.OutOfMemoryError`` from its caching allocator on an accelerator, as a plain
    ``RuntimeError`` from its CPU allocator and from a file that cannot be mapped, and as ``AcceleratorError`` or
    ``RuntimeError`` from CUDA itself and from libraries that allocate beside it. NumPy and Python raise
    ``MemoryError``, the system ``ENOMEM``.
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and _says(str(error), _OUT_OF_MEMORY)


def detail_of(error: BaseException) -> str:
    """Returns the first line of the error's message, bounded; the name of its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:MAX_DETAIL_CHARACTERS]


def accelerator_error(error: BaseException) -> AcceleratorError | None:
    """Returns what to report where a GPU failed: it vanished, hung, or met an error. None for any other error."""
    if not isinstance(error, RuntimeError) or is_out_of_memory(error) or not _says(str(error), _ACCELERATOR):
        return None
    first_line = str(error).strip().splitlines()[0]
    return AcceleratorError(
        f"the GPU stopped working ({first_line}): the learner is started again from its last checkpoint. If this "
        'comes back, look at `nvidia-smi` and for "Xid" in the system log, reset the GPU, or set policy.device = "cpu"'
    )


def _says(message: str, phrases: tuple[str, ...]) -> bool:
    lower = message.lower()
    return any(phrase in lower for phrase in phrases)
