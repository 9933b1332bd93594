"""The settings that an engine's process reads on its standard input. No torch: its parent may not have it."""

from __future__ import annotations

from typing import Any

import msgspec


class ProcessSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first line on standard input of any engine's process."""

    socket: str  # path; nothing is there
    files: str  # the directory in which the learner puts whole weights
    log_level: str = "INFO"


class EngineSetup(ProcessSetup, frozen=True, kw_only=True):
    """The setup of the embedded engine's process."""

    policy: dict[str, Any]  # ``PolicySection`` as JSON, with every "auto" decided
    seed: int
    merge_adapters: bool


class LentSetup(EngineSetup, frozen=True, kw_only=True):
    """The setup of the engine, or the stage, that a donor lends."""

    family: str  # hex, of the owner's policy
    max_memory_bytes: int | None = None  # of main memory, as the owner of the machine set it
