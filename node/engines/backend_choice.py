"""Which engine generates, and why: pure, and without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from node.configuration import BackendName, EngineSection

WHERE: Final[Mapping[BackendName, str]] = {
    "torch": "the embedded engine, in the learner's process",
    "process": "the embedded engine, in a process of its own that may die without harm to the run",
}


@dataclass(frozen=True, slots=True)
class BackendChoice:
    backend: BackendName
    because: str  # where it runs, and who chose it


def choose_backend(section: EngineSection) -> BackendChoice:
    return BackendChoice(section.backend, f'{WHERE[section.backend]} (engine.backend = "{section.backend}")')
