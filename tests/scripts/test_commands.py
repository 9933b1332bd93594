"""Every command that a page names is there and answers ``--help``, or the page names the commit that has it."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from node.compute_environment import compute_environment
from scripts import REPOSITORY

NAMED: Final = re.compile(r"\bscripts(?:\.[a-z_]+)+\b(?!\.)")
AT_COMMIT: Final = re.compile(r"commit\s+[0-9a-f]{7}\b|at-[0-9a-f]{7}\b")
PAGES: Final = [*sorted((REPOSITORY / "docs").rglob("*.md")), REPOSITORY / "README.md"]
FOLDERS: Final = ("attacks", "bench", "experiments")


def module_of(name: str) -> str | None:
    """Returns the module that ``python -m name`` runs; None where there is none."""
    try:
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = find_spec(f"{name}.__main__")
    except ModuleNotFoundError:
        return None
    return spec.name if spec is not None else None


def named() -> Iterator[tuple[str, str, bool]]:
    """Yields page, command, and whether its paragraph names a commit that has it."""
    for page in PAGES:
        for paragraph in re.split(r"\n\s*\n|\n(?=- |\|)", page.read_text(encoding="utf-8")):
            for found in NAMED.finditer(paragraph):
                yield page.name, found.group(), AT_COMMIT.search(paragraph) is not None


def commands() -> list[str]:
    found = {module for _, name, _ in named() if (module := module_of(name)) is not None}
    for folder in FOLDERS:
        files = (REPOSITORY / "scripts" / folder).glob("*.py")
        found |= {f"scripts.{folder}.{file.stem}" for file in files if file.stem != "__init__"}
    return sorted(found)


def test_a_page_names_no_command_that_is_gone_without_its_commit() -> None:
    assert not {(page, name) for page, name, at_commit in named() if not at_commit and module_of(name) is None}
    assert len(commands()) > 40


@pytest.mark.parametrize("module", commands())
def test_command_answers_help_and_says_how_it_is_called(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in compute_environment({"HF_HUB_OFFLINE": "1", **os.environ}).items():
        monkeypatch.setenv(name, value)  # otherwise some replace their process first
    monkeypatch.setattr("sys.argv", [module, "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module).main()
    assert ended.value.code == 0
    called = module.removesuffix(".__main__")
    assert called in capsys.readouterr().out
    assert f"-m {called}" in Path(str(importlib.import_module(module).__file__)).read_text(encoding="utf-8")
