"""An operation of torch that runs out of memory: for tests of everything that computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from scripts.bench.common.failing_node import allocates


class FailsAt(TorchDispatchMode):
    """While active, the operations with these numbers, counted from 0 among those of ``kind``, raise.

    ``kind`` None counts every operation that allocates; with ``in_place`` also those that do not.
    """

    def __init__(self, *numbers: int, kind: str | None = None, in_place: bool = False) -> None:
        super().__init__()
        self._numbers, self._kind, self._in_place = frozenset(numbers), kind, in_place
        self.seen = 0
        self.raised = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = str(func)
        if name == self._kind or (self._kind is None and (self._in_place or allocates(func))):
            self.seen += 1
            if self.seen - 1 in self._numbers:
                self.raised += 1
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate for {name}.")
        return func(*args, **(kwargs or {}))
