"""How a node ended."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.exit_codes import ExitCode


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The exit code of ``starling up``, and why."""

    exit_code: ExitCode
    because: str  # "rounds", "tokens", or a sentence; safe to print
