"""What a computing process is given before it imports its libraries."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from node.compute_environment import (
    COMPUTE_DEFAULTS,
    compute_environment,
    importing_libraries,
    thread_limit,
    without_compute_settings,
)


def test_variables_of_the_user_take_precedence() -> None:
    environment = compute_environment({"GOMP_SPINCOUNT": "7", "HOME": "/home/ann"})
    assert environment == COMPUTE_DEFAULTS | {"GOMP_SPINCOUNT": "7", "HOME": "/home/ann"}


def test_another_program_gets_what_the_user_set_and_limits_of_threads_and_nothing_of_ours() -> None:
    own = {"GOMP_SPINCOUNT": "7", "HOME": "/home/ann"}
    limited = own | thread_limit(1, own)
    assert without_compute_settings(compute_environment(own)) == own
    assert without_compute_settings(compute_environment(limited)) == limited


def test_package_that_downloads_code_is_hidden_from_the_libraries_and_from_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernels.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with importing_libraries():
        assert importlib.util.find_spec("kernels") is None
        with pytest.raises(ImportError):
            importlib.import_module("kernels")
    assert importlib.util.find_spec("kernels") is not None
