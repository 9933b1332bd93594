"""TRL's virtual environment, ``.venv-trl`` (1.5 GB), made the first time it is needed."""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib import metadata
from typing import Final

from scripts import REPOSITORY

TRL_PYTHON: Final = REPOSITORY / ".venv-trl" / "bin" / "python"


def prepare_trl() -> None:
    """Makes the environment where it is missing, with the PyTorch version that runs here, so that only TRL differs."""
    if TRL_PYTHON.exists():
        return
    torch = ".".join(metadata.version("torch").split(".")[:2])
    venv.create(TRL_PYTHON.parents[1], with_pip=True)
    install = [str(TRL_PYTHON), "-m", "pip", "--quiet", "install", "trl==1.16.*", f"torch=={torch}.*"]
    subprocess.run(install, check=True, stdout=sys.stderr)
