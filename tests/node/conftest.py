"""What the tests of the node share: the command, run in this process; a CPU that stands for a GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from node.cli import main as cli
from tests.lighter_interpreter import lighten_interpreter


@pytest.fixture
def starling(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Runs the command with a data directory of its own. Returns exit code, standard output, standard error. What a
    verb sets in the environment does not outlive the test."""
    monkeypatch.setenv("STARLING_HOME", str(tmp_path / "home"))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["starling", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    with mock.patch.dict(os.environ):
        yield run


@pytest.fixture
def by_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPU tensors are dispatched as CUDA's are, to Triton's interpreter, which supports one thread alone."""
    import torch

    from node.kernels import dispatch

    lighten_interpreter()
    monkeypatch.setattr(dispatch, "TRITON_DEVICES", {"cpu"})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def as_gpu_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors are dispatched as those of a GPU for which no Triton is installed."""
    from node.kernels import dispatch

    monkeypatch.setattr(dispatch, "TRITON_DEVICES", {"cpu"})
    monkeypatch.setattr(dispatch, "_triton_is_installed", lambda: False)
