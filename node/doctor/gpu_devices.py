"""Whether this machine may have a GPU, told from device files alone: asking torch costs seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path("/")
NVIDIA: Final = ("dev/nvidiactl", "dev/nvmap", "dev/nvhost-ctrl")  # the last two: Jetson
AMD: Final = "dev/kfd"
WSL: Final = "dev/dxg"  # of WSL2, for a GPU of any make
WSL_CUDA: Final = "usr/lib/wsl/lib/libcuda.so.1"  # which Windows' NVIDIA driver puts there


def has_nvidia(root: Path = ROOT) -> bool:
    """Returns whether an NVIDIA driver is loaded, in WSL2 that of Windows."""
    return any((root / each).exists() for each in NVIDIA) or ((root / WSL).exists() and (root / WSL_CUDA).exists())


def may_have_gpu(root: Path = ROOT) -> bool:
    """Returns whether torch is worth asking on Linux: False only where it would find none."""
    return has_nvidia(root) or (root / AMD).exists() or (root / WSL).exists()
