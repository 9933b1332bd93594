"""Figures of a GPU from the lines that nvidia-smi prints, and programs that do not answer as it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.events import DeviceUsage
from node.supervision.watching import device_usage as module
from node.supervision.watching.device_usage import device_usage, usage_from, visible_gpu

H100 = "NVIDIA H100 80GB HBM3, 40123, 81559, 93, 512.34, 700.00"


def test_a_line_of_the_driver_becomes_bytes_shares_and_watts() -> None:
    assert usage_from(H100) == DeviceUsage("NVIDIA H100 80GB HBM3", 40123 << 20, 81559 << 20, 0.93, 512.34, 700.0)


def test_figures_that_a_driver_does_not_report_are_none() -> None:
    laptop = usage_from("NVIDIA GeForce MX150, 10, 2002, [Not Supported], [N/A], nan")
    assert laptop == DeviceUsage("NVIDIA GeForce MX150", 10 << 20, 2002 << 20, None, None, None)


@pytest.mark.parametrize("line", ["", "No devices were found", "a,b", ",1,2,3,4,5"])
def test_a_line_of_another_kind_is_no_figure(line: str) -> None:
    assert usage_from(line) is None


@pytest.mark.parametrize(
    ("device", "visible", "gpu"),
    [
        ("cpu", None, None),
        ("mps", None, None),
        ("cuda", None, "0"),
        ("cuda:1", None, "1"),
        ("cuda:1", "3,5", "5"),
        ("cuda:0", "GPU-8f2a", "GPU-8f2a"),
        ("cuda:2", "3,5", None),
        ("cuda:0", "", None),
        ("cuda:x", None, None),
    ],
)
def test_the_gpu_is_the_one_that_torch_sees(device: str, visible: str | None, gpu: str | None) -> None:
    assert visible_gpu(device, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == gpu


def program(folder: Path, body: str) -> str:
    path = folder / "gpu-figures"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


async def test_the_program_is_asked_for_that_gpu_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    asked = program(tmp_path, f'[ "$1" = --id=1 ] && echo "{H100}"')
    found = await device_usage("cuda:1", program=asked)
    assert found is not None and found.power_watts == 512.34
    assert await device_usage("cuda:0", program=asked) is None
    assert await device_usage("cuda:1", program=str(tmp_path / "none")) is None


async def test_a_driver_that_hangs_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.05)
    assert await device_usage("cuda:0", program=program(tmp_path, "exec sleep 60")) is None
