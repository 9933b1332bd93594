"""The import of torch and transformers, without what few nodes use: a third of its time and 120 MB of a process.

transformers imports at its top what serves, shards and quantizes large models, and marks functions for torch's
compiler. Nothing here is compiled (``compute_environment``): a mark means nothing, there is no compiler for who asks,
and sizes are numbers, not symbols of a compiler, for which torch imports sympy. What is deferred is imported where it
is used after all: by a learner on several devices, or of a model in 4 bits.
"""

from __future__ import annotations

import atexit
import functools
import gc
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any, Final

from swarm.deferred_imports import deferred

# Not torch._meta_registrations, which would save .4 s and 20 MB: torch._decomp fails where it is imported before that
# module, as torch.distributed.tensor does.
RARELY_USED: Final = (
    "PIL",
    "accelerate",
    "sympy",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.fx.experimental.symbolic_shapes",
    "torch.utils._sympy",
    "transformers.distributed.expert_parallel",  # this and the next use torch.distributed.tensor as they are imported
    "transformers.distributed.tensor_parallel",
    "trio",
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

_TRUE: Final = ("expect_true", "guard_or_false", "guard_or_true", "statically_known_true")
_NUMBERS: Final[Mapping[str, Callable[..., bool]]] = {
    **{name: lambda condition: bool(condition) for name in _TRUE},
    "is_nested_int": lambda _: False,
    "sym_and": lambda *conditions: all(conditions),
    "sym_eq": lambda one, other: bool(one == other),
    "sym_or": lambda *conditions: any(conditions),
}
SIZES: Final = {  # what torch asks of them on the meta device
    f"torch.fx.experimental.symbolic_shapes.{name}": answer for name, answer in _NUMBERS.items()
}


def deferring() -> AbstractContextManager[None]:
    """Defers what is rarely used for the duration of the context, in which libraries are imported or a model is built:
    its classes are imported then, and on the meta device torch asks for its compiler."""
    return deferred(RARELY_USED, {**COMPILER, **SIZES})


class _ReadOnce(MetaPathFinder):
    """Has transformers read each of its folders once as it is imported, and of each file only what it looks for.

    It reads the source of all its models, 45 MB, to learn which module has which class, and does so twice: what it
    keeps of the first time is the last 128 folders, of 500. It looks at every line for the last that begins with
    ``__all__``, which takes half of the time.
    """

    _MODULE: Final = "transformers.utils.import_utils"
    _READS_FOLDER: Final = "create_import_structure_from_path"  # an ``lru_cache``
    _READS_NAMES: Final = "fetch__all__"

    class _Loader(SourceFileLoader):
        def exec_module(self, module: ModuleType) -> None:
            super().exec_module(module)
            read_folder: Any = getattr(module, _ReadOnce._READS_FOLDER, None)
            if hasattr(read_folder, "__wrapped__"):
                setattr(module, _ReadOnce._READS_FOLDER, functools.cache(read_folder.__wrapped__))
            read_names: Any = getattr(module, _ReadOnce._READS_NAMES, None)
            if read_names is not None:
                fewer_lines = functools.wraps(read_names)(lambda source: read_names(from_last_all(source)))
                setattr(module, _ReadOnce._READS_NAMES, fewer_lines)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self._MODULE else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = self._Loader(spec.loader.name, spec.loader.path)
        return spec


def from_last_all(source: str) -> str:
    """Returns what stands from the last line on that begins with ``__all__``; all of ``source`` without one."""
    return source[source.rfind("\n__all__") + 1 :]


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
    read_once = _ReadOnce()
    sys.meta_path.insert(0, read_once)
    try:
        with deferring():
            yield
    finally:
        sys.meta_path.remove(read_once)
        if hidden:
            del sys.modules["kernels"]
        gc.freeze()
        atexit.register(gc.unfreeze)  # otherwise triton reports its own objects as leaked
        gc.enable()
