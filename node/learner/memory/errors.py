"""Frees what a failed attempt still holds, and completes work that must not be left half done."""

from __future__ import annotations

import ctypes
import gc
import traceback
from collections.abc import Callable
from typing import TypeVar

from node.policy.device import free_cached_blocks
from node.policy.device_faults import detail_of, is_out_of_memory
from protocol.errors import HalfWrittenError

Result = TypeVar("Result")


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
    free_cached_blocks()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc keeps pages of what was freed; the system gets them back
        trim(0)


def completed(work: Callable[[], Result]) -> Result:
    """Returns what ``work`` returns, run once more if memory ran out in it: for what must not be left half done.

    ``work`` allocates next to nothing, and doing it again from its beginning gives the same result. Raises
    ``HalfWrittenError`` if memory runs out again: no phase is repeated after that.
    """
    try:
        return work()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        forget(error)
    give_back()
    try:
        return work()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise HalfWrittenError(
            f"memory ran out twice in the middle of changing the weights ({detail_of(error)}): the learner is started "
            "again from its last checkpoint. If this comes back, leave more memory to it: end other programs, or see "
            "`starling fit MODEL`"
        ) from error
