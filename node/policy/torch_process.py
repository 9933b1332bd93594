"""Asks torch in a process of its own: for programs that must not import it, or that it might take down with it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from node.compute_environment import compute_environment

ANSWER_SECONDS: Final = 120.0  # torch from a cold disk takes half a minute

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class NoAnswer:
    reason: str  # in words: it took too long, or its exit code and the last line that it wrote


def ask_torch(module: str, *arguments: str, answer: type[Answer]) -> Answer | NoAnswer:
    """Runs ``python -m module ARGUMENTS`` and returns the last line that it prints, decoded from JSON.

    Takes ``ANSWER_SECONDS`` at most.
    """
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", module, *arguments],
            env=compute_environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return NoAnswer(f"it did not start within {ANSWER_SECONDS:.0f} s")
    if ended.returncode != 0:
        last_line = (ended.stderr.strip().splitlines() or ["no error message"])[-1]
        return NoAnswer(f"exit code {ended.returncode}: {last_line}")
    return msgspec.json.decode(ended.stdout.splitlines()[-1], type=answer)
