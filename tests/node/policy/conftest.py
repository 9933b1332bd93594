"""A model's folder that a test may damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from node.policy.model_files import BUILTIN_MODELS


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the smallest built-in model, with all weights in one file."""
    return Path(shutil.copytree(BUILTIN_MODELS / "wren", tmp_path / "copied"))
