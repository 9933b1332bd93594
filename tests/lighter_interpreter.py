"""Triton's interpreter without work of which nothing comes.

Triton 3.9 replaces the functions of ``triton.language`` again at each call of a function within a kernel; here a launch
does so, for all of them. Triton also computes whether sums and products of integers overflow, and looks at the result
only where ``debug`` is set.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any


def lighten_interpreter() -> None:
    """From here on kernels in the interpreter do the same in less time. A second call changes nothing."""
    import triton.language as tl
    from triton.runtime import interpreter

    if interpreter.InterpretedFunction.__call__ is _call:
        return
    patch, both = interpreter._patch_lang, SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    interpreter._patch_lang = lambda kernel: patch(both)
    interpreter.InterpretedFunction.__call__ = _call
    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = replace(options, sanitize_overflow=options.debug)


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    """A call within a kernel."""
    from triton.runtime.errors import InterpreterError

    try:
        return function.rewrite()(*args, **kwargs)
    except Exception as error:
        raise InterpreterError(repr(error)) from error
