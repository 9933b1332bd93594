"""A recorder of decode steps on a CPU: it keeps every call with its tensors and repeats the calls, no code of the step.

What a graph of a GPU cannot hold is refused while recording: a value that the host reads, data that come from the host,
and a result whose shape depends on values. Repeated calls write to the addresses of the first ones.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from node.engines.lean.step_graphs import Recorded

REFUSED: Final = frozenset(
    {
        "_local_scalar_dense",
        "nonzero",
        "unique",
        "_unique2",
        "masked_select",
        "lift_fresh",
        "item",
        "equal",
        "is_nonzero",
    }
)


class RecordedCalls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], object]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in REFUSED:
            raise RuntimeError(f"{name} makes the host wait, or is decided by it")
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and not any(alias.alias_info for alias in func._schema.returns):
            self.calls.append(lambda: result.copy_(func(*args, **kwargs)))
        else:
            self.calls.append(lambda: func(*args, **kwargs))
        return result


class Recorder:
    """``recorded`` and ``replayed`` count. As torch does, it refuses to record where all that was recorded since
    ``forget`` is gone."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0
        self._since = list[weakref.ref[RecordedCalls]]()

    def forget(self) -> None:
        self._since.clear()

    def record(self, work: Callable[[], Tensor]) -> Recorded:
        if self._since and all(each() is None for each in self._since):
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        launch = triton.runtime.interpreter.GridExecutor.__call__
        calls = RecordedCalls()

        def kept(executor: Any, *args: Any, **kwargs: Any) -> None:
            with torch._C._DisableTorchDispatch():  # the kernel's own reads are the device's
                launch(executor, *args, **kwargs)
            calls.calls.append(lambda: launch(executor, *args, **kwargs))

        triton.runtime.interpreter.GridExecutor.__call__ = kept
        try:
            with calls:
                result = work()
        finally:
            triton.runtime.interpreter.GridExecutor.__call__ = launch
        self.recorded += 1
        self._since.append(weakref.ref(calls))

        def replay() -> None:
            self.replayed += 1
            for call in calls.calls:
                call()

        return Recorded(replay, result, calls)
