"""What the imports of torch and transformers leave out. ``test_learner_process.py`` shows that a learner needs none."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from node.library_imports import from_last_all, importing_libraries


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


def test_names_of_a_module_are_the_same_from_its_last_list_on() -> None:
    from transformers.utils import import_utils

    read_names = getattr(import_utils.fetch__all__, "__wrapped__", import_utils.fetch__all__)
    models = Path(import_utils.__file__).parents[1] / "models"
    sources = [path.read_text() for name in ("auto", "llama", "qwen2") for path in (models / name).glob("*.py")]
    sources += [
        "",
        "x = 1\n",
        '__all__ = ["First"]\n__all__ = ["Second"]\n',
        'a = "__all__"',
        "def f():\n    __all__ = []\n",
    ]
    for source in sources:
        assert read_names(from_last_all(source)) == read_names(source)
    assert any(read_names(source) for source in sources)
