"""hivemind in an environment of its own, ``.venv-hivemind`` (1.3 GB), made the first time it is needed.

Its protobuf definitions and those of py-libp2p cannot live in one process.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path
from typing import Final

HIVEMIND_PYTHON: Final = Path(__file__).resolve().parents[2] / ".venv-hivemind" / "bin" / "python"


def prepare_hivemind() -> None:
    """With the PyTorch that runs here."""
    if HIVEMIND_PYTHON.exists():
        return
    venv.create(HIVEMIND_PYTHON.parents[1], with_pip=True)
    torch = ".".join(metadata.version("torch").split(".")[:2])
    install = [str(HIVEMIND_PYTHON), "-m", "pip", "--quiet", "install", "hivemind==1.1.12", f"torch=={torch}.*"]
    subprocess.run(install, check=True, stdout=sys.stderr)
