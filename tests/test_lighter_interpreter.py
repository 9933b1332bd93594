"""The lighter interpreter computes what Triton's does, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.processes
def test_a_kernel_computes_the_same_bits_in_the_lighter_interpreter() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.interpreter_results"]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plain, lighter = done.stdout.splitlines()
    assert plain == lighter
