"""A prefetch hint, for compiled loops that write to irregular places: which element will be written soon.

Weights that change lie a few cache lines apart, too irregularly for a processor to predict the next one. With a hint 64
changes ahead, each line is in the cache when it is needed, and patching takes a third of the time.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

AHEAD: Final = 64  # elements written between the hint for one and its own write

_HINT: Final = "llvm.prefetch.p0"
_TO_WRITE, _KEEP, _DATA = 1, 3, 1  # LLVM's arguments: access, locality, cache


def _typed(context: Any, array: Any, index: Any) -> Any:
    """Returns the intrinsic's signature for these types, and its code generator."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        view = context.make_array(kind)(context, builder, arguments[0])
        pointer = cgutils.get_item_pointer(context, builder, kind, view, [arguments[1]], wraparound=False)  # type: ignore[no-untyped-call]
        address, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        declared = ir.FunctionType(ir.VoidType(), [address, number, number, number])
        hint = cgutils.get_or_insert_function(builder.module, declared, _HINT)  # type: ignore[no-untyped-call]
        numbers = [number(value) for value in (_TO_WRITE, _KEEP, _DATA)]
        builder.call(hint, [builder.bitcast(pointer, address), *numbers])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


prefetch: Any = intrinsic(_typed)
"""``prefetch(array, index)`` in compiled code: affects only time; ``index`` must lie inside the array."""
