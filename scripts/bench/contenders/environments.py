"""The contenders' virtual environments, ``.venv-trl`` and ``.venv-genrl`` (1.5 GB each), made when they are needed."""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path
from typing import Final

from scripts import REPOSITORY

TRL_PYTHON: Final = REPOSITORY / ".venv-trl" / "bin" / "python"
GENRL_PYTHON: Final = REPOSITORY / ".venv-genrl" / "bin" / "python"


def prepare_trl() -> None:
    _prepare(TRL_PYTHON, "trl==1.16.*")


def prepare_genrl() -> None:
    """GenRL is the reference implementation of SAPO (arXiv 2509.08721)."""
    _prepare(GENRL_PYTHON, "gensyn-genrl==0.3.0")


def _prepare(python: Path, package: str) -> None:
    """Makes the environment where it is missing, with the PyTorch version that runs here, so that only the package
    differs. Raises ``CalledProcessError`` where it cannot be installed; the next call tries again."""
    done = python.parents[1] / "installed"
    if done.exists():
        return
    torch = ".".join(metadata.version("torch").split(".")[:2])
    venv.create(python.parents[1], clear=True, with_pip=True)
    install = [str(python), "-m", "pip", "--quiet", "install", package, f"torch=={torch}.*"]
    subprocess.run(install, check=True, stdout=sys.stderr)
    done.touch()
