"""An operation of torch that runs out of memory: for tests of everything that computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class FailsAt(TorchDispatchMode):
    """While active, the operations with these numbers, counted from 0 among those of ``kind``, raise.

    ``kind`` None counts all operations.
    """

    def __init__(self, *numbers: int, kind: str | None = None) -> None:
        super().__init__()
        self._numbers, self._kind = frozenset(numbers), kind
        self.seen = 0
        self.raised = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = str(func)
        if self._kind in (None, name) and not name.startswith("profiler."):  # a mark, with no tensor in it
            self.seen += 1
            if self.seen - 1 in self._numbers:
                self.raised += 1
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate for {name}.")
        return func(*args, **(kwargs or {}))
