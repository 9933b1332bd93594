"""The version of starling, stated here alone: ``pyproject.toml`` reads it from this file, all other code imports it."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
SOFTWARE: Final = f"starling {VERSION}"  # what this node calls its software in announcements
