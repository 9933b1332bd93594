"""TRL in an environment of its own, ``.venv-trl`` (1.5 GB), made the first time it is needed."""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path
from typing import Final

TRL_PYTHON: Final = Path(__file__).resolve().parents[2] / ".venv-trl" / "bin" / "python"


def prepare_trl() -> None:
    """With the PyTorch that runs here, so that only TRL differs."""
    if TRL_PYTHON.exists():
        return
    venv.create(TRL_PYTHON.parents[1], with_pip=True)
    torch = ".".join(metadata.version("torch").split(".")[:2])
    install = [str(TRL_PYTHON), "-m", "pip", "--quiet", "install", "trl==1.16.*", f"torch=={torch}.*"]
    subprocess.run(install, check=True, stdout=sys.stderr)
