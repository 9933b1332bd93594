"""hivemind's virtual environment, ``.venv-hivemind`` (1.3 GB), made the first time it is needed.

Its protobuf definitions and those of py-libp2p cannot be loaded in one process.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib import metadata
from typing import Final

from scripts import REPOSITORY

HIVEMIND_PYTHON: Final = REPOSITORY / ".venv-hivemind" / "bin" / "python"


def prepare_hivemind() -> None:
    """Makes the environment where it is missing, with the version of PyTorch that runs here."""
    if HIVEMIND_PYTHON.exists():
        return
    torch = ".".join(metadata.version("torch").split(".")[:2])
    venv.create(HIVEMIND_PYTHON.parents[1], with_pip=True)
    install = [str(HIVEMIND_PYTHON), "-m", "pip", "--quiet", "install", "hivemind==1.1.12", f"torch=={torch}.*"]
    subprocess.run(install, check=True, stdout=sys.stderr)
