"""The size above which a tensor's memory goes back to the system as soon as it is freed.

``node.compute_environment`` lets glibc map every tensor above 4 MiB by itself, for all models. A model of half a
billion weights has many tensors between 1 and 4 MiB; freed, they leave holes that no later tensor fits. Mapping those
too costs a small model a third of its speed, and a large one nothing that was measurable.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

from node.compute_environment import COMPUTE_DEFAULTS

LARGE_PARAMETERS: Final = 50_000_000
THRESHOLD_BYTES: Final = 1 << 20
_VARIABLE: Final = "MALLOC_MMAP_THRESHOLD_"
_M_MMAP_THRESHOLD: Final = -3  # of glibc's malloc.h


def return_freed_tensors(parameters: int) -> None:
    """Lowers the size for a model of so many ``parameters``, if it is large. Does nothing where the C library is not
    glibc, or the user has set the variable."""
    set_by_user = os.environ.get(_VARIABLE, COMPUTE_DEFAULTS[_VARIABLE]) != COMPUTE_DEFAULTS[_VARIABLE]
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if parameters >= LARGE_PARAMETERS and mallopt is not None and not set_by_user:
        mallopt(_M_MMAP_THRESHOLD, THRESHOLD_BYTES)
