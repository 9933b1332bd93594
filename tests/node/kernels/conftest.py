"""What tests of Triton kernels share: CPU tensors are dispatched as CUDA's are, to Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from node.kernels import dispatch


@pytest.fixture
def by_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On one thread: Triton's interpreter does not support several."""
    monkeypatch.setattr(dispatch, "TRITON_DEVICES", {"cpu"})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def as_gpu_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors are dispatched as those of a GPU for which no Triton is installed."""
    monkeypatch.setattr(dispatch, "TRITON_DEVICES", {"cpu"})
    monkeypatch.setattr(dispatch, "_triton_is_installed", lambda: False)
