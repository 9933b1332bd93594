"""Whether this machine may have a GPU, told from device files alone: asking torch costs seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path("/")
NVIDIA: Final = ("dev/nvidiactl", "dev/nvmap", "dev/nvhost-ctrl")  # the last two: Jetson
AMD: Final = "dev/kfd"
WSL: Final = "dev/dxg"  # of WSL2, for a GPU of any make
WSL_CUDA: Final = "usr/lib/wsl/lib/libcuda.so.1"  # which Windows' NVIDIA driver puts there


DISPLAYS: Final = "sys/class/drm"
MAKERS: Final = {"0x8086": "Intel", "0x1002": "AMD", "0x10de": "NVIDIA"}  # PCI vendors
JETSON, WSL2 = "Jetson", "WSL2"


def devices(root: Path = ROOT) -> tuple[str, ...]:
    """Returns the makers of the graphics that Linux knows here, and what else computes or passes a GPU on."""
    vendors = {path.read_text().strip() for path in sorted((root / DISPLAYS).glob("card[0-9]/device/vendor"))}
    found = {MAKERS[vendor] for vendor in vendors & MAKERS.keys()}
    found |= {JETSON for name in NVIDIA[1:] if (root / name).exists()}
    found |= {"NVIDIA"} if (root / NVIDIA[0]).exists() else set()
    return tuple(sorted(found | ({WSL2} if (root / WSL).exists() else set())))


def has_nvidia(root: Path = ROOT) -> bool:
    """Returns whether an NVIDIA driver is loaded, in WSL2 that of Windows."""
    return any((root / each).exists() for each in NVIDIA) or ((root / WSL).exists() and (root / WSL_CUDA).exists())


def may_have_gpu(root: Path = ROOT) -> bool:
    """Returns whether torch is worth asking on Linux: False only where it would find none."""
    return has_nvidia(root) or (root / AMD).exists() or (root / WSL).exists()
