"""The one place that says which version of starling this is; ``pyproject.toml`` reads it from here."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
