"""Which errors mean that memory ran out, and how what a failed attempt still holds is given back.

PyTorch reports it in several ways: ``torch.OutOfMemoryError`` from its caching allocator on an accelerator, a plain
``RuntimeError`` from its CPU allocator and from a file that cannot be mapped, ``AcceleratorError`` or ``RuntimeError``
from CUDA itself and from the libraries that allocate beside it. NumPy and Python raise ``MemoryError``, the system
``ENOMEM``.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import traceback
from collections.abc import Callable
from typing import Final

import torch

MAX_DETAIL_CHARACTERS: Final = 300
_MESSAGES: Final = (
    "DefaultCPUAllocator: can't allocate memory",  # [enforce fail at alloc_cpu.cpp…]
    "DefaultCPUAllocator: not enough memory",  # on Windows
    "out of memory",  # "CUDA error: out of memory", "MPS backend out of memory"
    "Cannot allocate memory",  # "unable to mmap … bytes from file"
    "_STATUS_ALLOC_FAILED",  # cuBLAS, cuDNN, cuSPARSE
    "std::bad_alloc",  # of an extension that does not translate it
    "could not create a primitive",  # oneDNN, which does not say why; seen where its code or scratch finds no room
    "could not create a memory object",
    "could not execute a primitive",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether ``error`` means that memory ran out, of the device or of the machine."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _MESSAGES)


def detail_of(error: BaseException) -> str:
    """Returns the first line of the error's message, bounded; the name of its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:MAX_DETAIL_CHARACTERS]


def forget(error: BaseException) -> None:
    """Lets go of what a failed attempt still holds.

    The traceback of ``error`` holds the frames between where it was raised and where it was caught, and they hold
    tensors: their local variables are cleared. The caller must hold no reference to a result of the attempt.
    """
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__


def give_back() -> None:
    """Gives memory that nothing refers to back to the system and the device."""
    gc.collect()
    torch.cuda.empty_cache()  # does nothing where CUDA is not in use
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc keeps pages of what was freed; the system gets them back
        trim(0)


def completed(work: Callable[[], None]) -> None:
    """Runs ``work``, and once more if memory ran out in it: for writes in place, which must not be left half done.

    ``work`` allocates next to nothing, and doing it again from its beginning gives the same result.
    """
    try:
        work()
        return
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        forget(error)
    give_back()
    work()
