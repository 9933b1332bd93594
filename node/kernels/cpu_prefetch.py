"""A hint to the processor, for compiled loops that write here and there: which element will be written soon.

Weights that change lie a few cache lines apart, too irregularly for a processor to guess the next one; told 64 changes
ahead, it has fetched each line by the time it is needed, and patching takes a third of the time.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

AHEAD: Final = 64  # elements to be written between the hint and the write

_HINT: Final = "llvm.prefetch.p0"
_TO_WRITE, _KEEP, _DATA = 1, 3, 1  # its numbers: what for, how long, which cache


def _typed(context: Any, array: Any, index: Any) -> Any:
    """Its signature for these types, and what generates it."""

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
"""``prefetch(array, index)`` in compiled code: no effect but on time; ``index`` lies inside the array."""
