"""What the imports of torch and transformers leave out. ``test_learner_process.py`` shows that a learner needs none."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from node.library_imports import importing_libraries


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
