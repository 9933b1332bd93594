"""The import of torch and transformers, without what few nodes use: a third of its time and 120 MB of a process.

transformers imports at its top what serves, shards and quantizes large models, and marks functions for torch's
compiler. Nothing here is compiled (``compute_environment``), so a mark means nothing, and there is no compiler for who
asks. What is deferred is imported where it is used after all: by a learner on several devices, or of a model in 4 bits.
"""

from __future__ import annotations

import atexit
import gc
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from swarm.deferred_imports import deferred

RARELY_USED: Final = (
    "PIL",
    "accelerate",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "transformers.distributed.expert_parallel",  # this and the next use torch.distributed.tensor as they are imported
    "transformers.distributed.tensor_parallel",
)


def _unmarked(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Callable[..., Any]:
    """The decorator that changes nothing, or makes itself: ``@disable`` and ``@disable(recursive=False)``."""
    return _unmarked if function is None else function


def _no_backend() -> str:
    raise RuntimeError("nothing is compiled here")  # bitsandbytes then takes the function as it is


COMPILER: Final = {
    **{f"torch._dynamo.{mark}": _unmarked for mark in ("allow_in_graph", "assume_constant_result", "disable")},
    "torch._dynamo.backends.registry.get_default_backend": _no_backend,
}


def deferring() -> AbstractContextManager[None]:
    """Defers what is rarely used for the duration of the context, in which libraries are imported or a model is built:
    its classes are imported then, and on the meta device torch asks for its compiler."""
    return deferred(RARELY_USED, COMPILER)


@contextmanager
def importing_libraries() -> Iterator[None]:
    """Defers what is rarely used, holds the garbage collector off, and hides the package ``kernels``, while torch and
    transformers are imported.

    The collector would look through all of their objects again and again and find nothing to free, which takes a sixth
    of the import's time. Later collections leave these objects out too, until the interpreter ends.

    On some CPUs bitsandbytes, when it is imported, downloads a kernel through ``kernels`` where that is installed and
    runs it, and warns where it is not. A node runs no code that nobody chose.
    """
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    hidden = "kernels" not in sys.modules
    if hidden:
        sys.modules["kernels"] = None  # type: ignore[assignment]  # how Python notes that an import fails
    gc.disable()
    try:
        with deferring():
            yield
    finally:
        if hidden:
            del sys.modules["kernels"]
        gc.freeze()
        atexit.register(gc.unfreeze)  # otherwise triton reports its own objects as leaked
        gc.enable()
