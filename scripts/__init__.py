"""Programs beside the package: benchmarks, experiments, and the makers of models, test vectors and pictures.

Each is a module that runs from the root of the repository: ``python -m scripts.bench.wire``.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]

# It warns on some processors of a kernel that nobody asked for: ``node.library_imports.importing_libraries``.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
