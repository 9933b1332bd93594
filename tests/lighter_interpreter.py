"""Triton's interpreter without work of which nothing comes.

What Triton 3.9's interpreter computes again at each operation of a kernel is computed once here: the functions that
replace those of ``triton.language``, the shapes and names of types, NumPy's types for Triton's, and the type that an
operation on two others has. Operands of one shape are not looked at for broadcasting, and bf16 becomes float32 (and
float32 bf16) by a shift. Triton also computes whether sums and products of integers overflow, and looks at the result
only where ``debug`` is set.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

KNOWN = "3.9."  # the versions whose insides these are
EXPONENT = 0x7F800000
MAGNITUDE = 0x7FFFFFFF


def lighten_interpreter() -> None:
    """From here on kernels in the interpreter do the same in less time; in that of another Triton, in as much. A second
    call changes nothing."""
    import triton
    import triton.language as tl
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    if interpreter.InterpretedFunction.__call__ is _call or not triton.__version__.startswith(KNOWN):
        return
    interpreter.InterpretedFunction.__call__ = _call
    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = replace(options, sanitize_overflow=options.debug)
    interpreter._patch_attr = _patch_attr
    interpreter._patch_lang = _patched_once(
        interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    )
    interpreter._get_np_dtype = _numpy_type(interpreter._get_np_dtype)
    interpreter._convert_float = _by_shifts(interpreter._convert_float)
    tl.core.block_type.__init__ = _block_type_of
    tl.core.block_type.__eq__ = _same_block_type
    tl.core.dtype.__eq__ = _same_or(tl.core.dtype.__eq__)
    tl.core.tensor.__init__ = _tensor_of
    TritonSemantic.broadcast_impl_value = _unless_of_one_shape(TritonSemantic.broadcast_impl_value)
    TritonSemantic.computation_type_impl = _computed_once(TritonSemantic.computation_type_impl)


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    """A call within a kernel, whose launch has replaced what is to be replaced."""
    from triton.runtime.errors import InterpreterError

    try:
        return function.rewrite()(*args, **kwargs)
    except Exception as error:
        raise InterpreterError(repr(error)) from error


def _patch_attr(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """A function of the language as kernels call it: without a look whether a kernel does."""
    from triton.runtime.interpreter import interpreter_semantic

    function = getattr(member, "__wrapped__", member)

    def called(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = interpreter_semantic
        return function(*args, **kwargs)

    scope.set_attr(owner, name, called)


def _patched_once(scope: Any) -> Callable[[Any], Any]:
    """Returns what replaces the language's functions for a launch, with those of ``scope``, which are taken back."""
    replaced = [(owner, name, getattr(owner, name)) for owner, name, _ in scope._changes]
    scope.restore()

    def patch(kernel: Any) -> Any:
        again = type(scope)()
        for change in replaced:
            again.set_attr(*change)
        return again

    return patch


def _numpy_type(plainly: Callable[[Any], Any]) -> Callable[[Any], Any]:
    known: dict[str, Any] = {}

    def remembered(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in known:
            known[name] = plainly(kind)
        return known[name]

    return remembered


def _by_shifts(plainly: Callable[..., Any]) -> Callable[..., Any]:
    """bf16 is the upper half of float32. Numbers below the smallest normal one are left to Triton's conversion."""

    def converted(numbers: Any, kind: Any, wanted: Any, rounding: Any) -> Any:
        if (kind.name, wanted.name) == ("bf16", "fp32"):
            bits = numbers.view(np.uint16).astype(np.uint32) << 16
        elif (kind.name, wanted.name, rounding) == ("fp32", "bf16", None):
            bits = numbers.view(np.uint32)
        else:
            return plainly(numbers, kind, wanted, rounding)
        if ((bits & EXPONENT == 0) & (bits & MAGNITUDE != 0)).any():
            return plainly(numbers, kind, wanted, rounding)
        return bits if wanted.name == "fp32" else (bits >> 16).astype(np.uint16)

    return converted


@cache
def _shaped(sizes: tuple[int, ...], element: str) -> dict[str, Any]:
    """What types of blocks of these sizes have in common, and what the tensors of such a type have."""
    import triton.language as tl
    from triton._utils import validate_block_shape

    if not sizes:
        raise TypeError("0d block_type is forbidden")
    shape, numel = tl.core.tuple(sizes), validate_block_shape(list(sizes))
    return {"shape": shape, "numel": numel, "name": f"<{shape}, {element}>", "constants": _constants(sizes)}


@cache
def _constants(sizes: tuple[int, ...]) -> tuple[Any, Any]:
    import triton.language as tl

    return tl.core.tuple([tl.constexpr(size) for size in sizes]), tl.constexpr(math.prod(sizes))


def _block_type_of(kind: Any, element_ty: Any, shape: Any) -> None:
    """``block_type.__init__``."""
    sizes = tuple([getattr(size, "value", size) for size in shape])
    kind.__dict__.update(_shaped(sizes, str(element_ty)))
    kind.element_ty = element_ty


def _tensor_of(tensor: Any, handle: Any, type: Any) -> None:
    """``tensor.__init__``."""
    tensor.handle, tensor.type, tensor.dtype = handle, type, type.scalar
    tensor.shape, tensor.numel = type.constants if type.is_block() else _constants(())


def _same_block_type(kind: Any, other: Any) -> bool:
    """``block_type.__eq__``."""
    return isinstance(other, type(kind)) and kind.name == other.name and bool(kind.element_ty == other.element_ty)


def _same_or(plainly: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda kind, other: kind is other or plainly(kind, other)


def _unless_of_one_shape(plainly: Callable[..., Any]) -> Callable[..., Any]:
    def broadcast(semantic: Any, left: Any, right: Any) -> Any:
        return (left, right) if left.shape is right.shape else plainly(semantic, left, right)

    return broadcast


def _computed_once(plainly: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[tuple[Any, ...], Any] = {}

    def remembered(semantic: Any, left: Any, left_is_scalar: bool, right: Any, right_is_scalar: bool, div: bool) -> Any:
        key = (left.name, left_is_scalar, right.name, right_is_scalar, div)
        if key not in known:
            known[key] = plainly(semantic, left, left_is_scalar, right, right_is_scalar, div)
        return known[key]

    return remembered
