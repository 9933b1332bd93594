"""Which library multiplies matrices on which processor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from node.kernels.products import (
    OneDnnProducts,
    TorchProducts,
    has_float32_results,
    is_intel,
    mkl_suits_processor,
    products_for,
)


@pytest.mark.parametrize(("vendor", "expected"), [("GenuineIntel", True), ("AuthenticAMD", False)])
def test_processor_of_intel_is_known_by_its_vendor(tmp_path: Path, vendor: str, expected: bool) -> None:
    description = tmp_path / "cpuinfo"
    description.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: GenuineIntel\n")
    assert is_intel(description, "") is expected


def test_without_a_description_the_name_of_the_processor_tells(tmp_path: Path) -> None:
    assert is_intel(tmp_path / "absent", "Intel64 Family 6 Model 158, GenuineIntel")
    assert not is_intel(tmp_path / "absent", "arm64")


def test_products_are_torchs_wherever_onednn_would_not_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    kinds = {}
    for intel in (True, False):
        monkeypatch.setattr("node.kernels.products.mkl_suits_processor", lambda intel=intel: intel)
        kinds[intel] = type(products_for(cpu, torch.float32))
    assert kinds == {True: TorchProducts, False: OneDnnProducts}
    assert isinstance(products_for(cpu, torch.bfloat16), TorchProducts)


@pytest.mark.parametrize(
    ("intel", "widest", "expected"),
    [(True, "AVX512", True), (True, "AVX2", True), (False, "AVX2", True), (False, "AVX512", False)],
)
def test_mkl_is_taken_unless_it_would_leave_wide_vectors_unused(
    intel: bool, widest: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.kernels.products.is_intel", lambda *_: intel)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: widest)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    mkl_suits_processor.cache_clear()
    try:
        assert mkl_suits_processor() is expected
    finally:
        mkl_suits_processor.cache_clear()


def test_a_library_that_refuses_float32_results_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ROCm's may; CPU tensors stand for the card's."""
    asked: list[object] = []
    ones = torch.ones

    def refusing(a: torch.Tensor, b: torch.Tensor, **options: object) -> torch.Tensor:
        asked.append(options["out_dtype"])
        raise RuntimeError("HIPBLAS_STATUS_NOT_SUPPORTED")

    monkeypatch.setattr(torch, "mm", refusing)
    monkeypatch.setattr(torch, "ones", lambda *shape, device, dtype: ones(*shape, dtype=dtype))
    has_float32_results.cache_clear()
    try:
        assert [has_float32_results(torch.device("cuda", 0)) for _ in range(3)] == [False] * 3
        assert asked == [torch.float32]
    finally:
        has_float32_results.cache_clear()
