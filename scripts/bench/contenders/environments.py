"""Virtual environments of contenders, each made the first time it is needed: ``.venv-trl`` (1.5 GB) and
``.venv-hivemind`` (1.3 GB), whose protobuf definitions and those of py-libp2p cannot be loaded in one process.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path
from typing import Final

from scripts import REPOSITORY

TRL_PYTHON: Final = REPOSITORY / ".venv-trl" / "bin" / "python"
HIVEMIND_PYTHON: Final = REPOSITORY / ".venv-hivemind" / "bin" / "python"
REQUIRED: Final = {TRL_PYTHON: "trl==1.16.*", HIVEMIND_PYTHON: "hivemind==1.1.12"}


def prepare(python: Path) -> None:
    """Makes the environment of ``python`` where it is missing, with the version of PyTorch that runs here, so that only
    the contender differs."""
    if python.exists():
        return
    torch = ".".join(metadata.version("torch").split(".")[:2])
    venv.create(python.parents[1], with_pip=True)
    install = [str(python), "-m", "pip", "--quiet", "install", REQUIRED[python], f"torch=={torch}.*"]
    subprocess.run(install, check=True, stdout=sys.stderr)
