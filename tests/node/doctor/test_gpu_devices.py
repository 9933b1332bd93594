"""Device files of machines that are not here, in a folder that stands for their root."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.doctor.gpu_devices import devices, has_nvidia, may_have_gpu


@pytest.mark.parametrize(
    ("files", "nvidia", "gpu"),
    [
        ([], False, False),
        (["dev/nvidiactl"], True, True),
        (["dev/nvmap"], True, True),  # Jetson
        (["dev/nvhost-ctrl"], True, True),
        (["dev/dxg", "usr/lib/wsl/lib/libcuda.so.1"], True, True),
        (["dev/dxg"], False, True),  # WSL2 with a GPU of another make
        (["dev/kfd"], False, True),  # AMD
        (["dev/dri/card0"], False, False),  # a display
    ],
)
def test_device_files_tell_what_a_machine_may_have(tmp_path: Path, files: list[str], nvidia: bool, gpu: bool) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert (has_nvidia(tmp_path), may_have_gpu(tmp_path)) == (nvidia, gpu)


def test_makers_of_graphics_are_told_from_their_pci_vendors(tmp_path: Path) -> None:
    for card, vendor in (("card0", "0x8086"), ("card1", "0x1002"), ("card2", "0x1af4")):
        (tmp_path / "sys/class/drm" / card / "device").mkdir(parents=True)
        (tmp_path / "sys/class/drm" / card / "device/vendor").write_text(f"{vendor}\n")
    (tmp_path / "dev").mkdir()
    for name in ("nvmap", "dxg"):
        (tmp_path / "dev" / name).touch()
    assert devices(tmp_path) == ("AMD", "Intel", "Jetson", "WSL2")
