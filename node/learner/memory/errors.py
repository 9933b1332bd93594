"""What a failed attempt still holds is let go of and given back; what must not be left half done is completed."""

from __future__ import annotations

import ctypes
import gc
import traceback
from collections.abc import Callable

import torch

from node.policy.device_faults import is_out_of_memory


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
