"""Packs what a node needs beside torch, Triton, numba and numpy, for a machine with a GPU that reaches no registry.

    python -m scripts.bench.gpu.packages [--python 3.12] [--cuda 130] [--without NAME ...]

Into ``.gpu-packages/site.tar.xz`` come the packages of ``pyproject.toml`` and theirs. On the other machine, from the
repository's root:

    mkdir /tmp/site && tar -xJf .gpu-packages/site.tar.xz -C /tmp/site
    PYTHONPATH=/tmp/site python3 -m scripts.bench.gpu

``--without`` names packages that the other machine has, which makes the archive smaller. Of bitsandbytes' libraries the
one for that CUDA (``torch.version.cuda`` there) is packed: all of them are as large as everything else.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from uv import find_uv_bin

from scripts import REPOSITORY

ARCHIVE: Final = REPOSITORY / ".gpu-packages" / "site.tar.xz"
THERE: Final = ("torch", "triton", "numba", "llvmlite", "numpy")
NOT_PACKED: Final = ("__pycache__", "tests")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python", default="3.12", help="of the other machine; one like it has to be here, or its path"
    )
    parser.add_argument("--cuda", default="130", help="of torch on the other machine, without the dot")
    parser.add_argument("--without", nargs="+", default=[], metavar="NAME", help="packages that are there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="starling-packages-") as folder:
        site = _installed(Path(folder), options.python, [*THERE, *options.without])
        own = site / "bitsandbytes"
        libraries = list(own.glob("libbitsandbytes_*.so"))
        kept = {own / f"libbitsandbytes_{which}.so" for which in ("cpu", f"cuda{options.cuda}")}
        if libraries and not kept <= set(libraries):
            raise SystemExit(f"bitsandbytes has no library for CUDA {options.cuda}: choose another --cuda")
        for library in set(libraries) - kept:
            library.unlink()
        ARCHIVE.parent.mkdir(exist_ok=True)
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            archive.add(site, ".", filter=_packed)
    print(f"{ARCHIVE.stat().st_size / 2**20:.1f} MiB in {ARCHIVE}")
    return 0


def _installed(folder: Path, python: str, there: Sequence[str]) -> Path:
    """Installs into an environment in ``folder`` and returns its packages."""
    uv, environment, left_out = find_uv_bin(), folder / "environment", folder / "left-out.txt"
    left_out.write_text("".join(f"{name} ; sys_platform == 'none'\n" for name in there))
    subprocess.run([uv, "venv", "--quiet", "--python", python, environment], check=True)
    wanted: list[str | Path] = ["packaging/pycosat", "--requirements", "pyproject.toml", "--overrides", left_out]
    install: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", environment / "bin" / "python", *wanted]
    subprocess.run(install, check=True, cwd=REPOSITORY)
    (site,) = environment.glob("lib/python*/site-packages")
    return site


def _packed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if set(NOT_PACKED) & set(Path(member.name).parts) else member


if __name__ == "__main__":
    sys.exit(main())
