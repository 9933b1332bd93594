"""What every path of a round does on a GPU that is not there, traced once for all tests of this room."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
STEPS: Final = 3  # of decoding, between two looks of the host
ROUNDS: Final = 2
FAULTS: Final = "faults"
Paths = dict[str, dict[str, Any]]  # path → as ``stand_in_device.Found``


@pytest.fixture(scope="session")
def paths(everything: Callable[[str], Paths]) -> Callable[[str], Paths]:
    """Returns what was found on a device, "cuda" or "mps", by path of a round."""
    return lambda kind: {name: found for name, found in everything(kind).items() if name != FAULTS}


@pytest.fixture(scope="session")
def everything() -> Callable[[str], Paths]:
    """The same with the path ``FAULTS``, which does what the others must not. A process of its own has the device."""

    @cache
    def traced(kind: str) -> Paths:
        command = [sys.executable, "-m", "tests.node.gpu.traced_paths", kind]
        done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return {line.pop("path"): line for line in lines}

    return traced
