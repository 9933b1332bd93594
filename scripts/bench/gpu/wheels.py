"""Downloads, for a machine that reaches no registry, what ``scripts.bench.gpu`` needs beside torch, Triton and numpy.

    python -m scripts.bench.gpu.wheels [--python 3.12] [--cuda 130] [--numba]

The wheels come into ``.gpu-wheels/``, in the versions installed here. On the other machine, from the repository's root:

    python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target /tmp/site .gpu-wheels/*.whl
    PYTHONPATH=/tmp/site python3 -m scripts.bench.gpu

Of bitsandbytes' libraries only the one for that CUDA (``torch.version.cuda`` there) stays in its wheel: all of them are
as large as everything else. ``--numba`` adds numba, which is as large as all others together; without it a machine that
has none skips engine and learner.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZipFile

from scripts import REPOSITORY

FOLDER: Final = REPOSITORY / ".gpu-wheels"
PACKAGES: Final = (
    "accelerate", "annotated-types", "anyio", "bitsandbytes", "cffi", "click", "cryptography", "filelock", "fsspec",
    "h11", "hf-xet",
    "httpcore2", "httpx2", "huggingface-hub", "idna", "msgspec", "packaging", "peft", "psutil", "pycparser", "pydantic",
    "pydantic-core", "pydantic-settings", "python-dotenv", "pyyaml", "regex", "safetensors", "tokenizers", "tqdm",
    "transformers", "truststore", "typing-extensions", "typing-inspection", "zstandard",
)  # fmt: skip
NUMBA: Final = ("llvmlite", "numba")
GLIBC: Final = (39, 38, 37, 36, 35, 34, 31, 28, 27, 24, 17)  # minor versions of platform tags that may occur


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="of the other machine")
    parser.add_argument("--cuda", default="130", help="of torch on the other machine, without the dot")
    parser.add_argument("--numba", action="store_true", help="numba too")
    options = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    wanted = [f"{name}=={version(name)}" for name in (*PACKAGES, *(NUMBA if options.numba else ()))]
    tags = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC] + ["manylinux2014_x86_64"]
    platforms = [flag for tag in tags for flag in ("--platform", tag)]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--dest", str(FOLDER)]
    subprocess.run(
        [*pip, "--python-version", options.python, "--implementation", "cp", *platforms, *wanted], check=True
    )
    for wheel in FOLDER.glob("bitsandbytes-*.whl"):
        _keep_one_library(wheel, f"libbitsandbytes_cuda{options.cuda}.so")
    wheels = list(FOLDER.glob("*.whl"))
    total = sum(wheel.stat().st_size for wheel in wheels) / 2**20
    print(f"{len(wheels)} wheels, {total:.1f} MiB, in {FOLDER}")
    return 0


def _keep_one_library(wheel: Path, name: str) -> None:
    """Writes the wheel again without its other compiled libraries. pip installs what a wheel holds."""
    smaller = wheel.with_suffix(".smaller")
    with ZipFile(wheel) as whole, ZipFile(smaller, "w", ZIP_DEFLATED) as kept:
        members = [member for member in whole.namelist() if not member.endswith(".so") or member.endswith(f"/{name}")]
        if not any(member.endswith(name) for member in members):
            raise SystemExit(f"{wheel.name} has no {name}: choose another --cuda")
        for member in members:
            kept.writestr(member, whole.read(member))
    smaller.replace(wheel)


if __name__ == "__main__":
    sys.exit(main())
