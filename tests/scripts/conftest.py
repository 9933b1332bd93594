"""The experiments' modules are scripts: found beside each other, not installed."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "experiments"))
