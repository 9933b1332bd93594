"""Which operations of torch can run out of memory."""

from __future__ import annotations

from typing import Any


def allocates(func: Any) -> bool:
    """Returns whether an operation of torch makes a tensor with memory of its own: no view, and no write in place."""
    return any(each.alias_info is None and "Tensor" in str(each.type) for each in func._schema.returns)
