"""The workflow of the hosted checks runs what is in the repository."""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_workflow_runs_files_that_are_there() -> None:
    run = re.findall(r"\.ci/\w+", (ROOT / ".github/workflows/ci.yml").read_text())
    assert run
    assert all(os.access(ROOT / each, os.X_OK) for each in run)
