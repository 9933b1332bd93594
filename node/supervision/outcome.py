"""How a node ended."""

from __future__ import annotations

from dataclasses import dataclass

from node.exit_codes import ExitCode


@dataclass(frozen=True, slots=True)
class Outcome:
    """The exit code of ``starling up``, and why."""

    exit_code: ExitCode
    because: str  # "rounds", "tokens", or in words; safe to print
