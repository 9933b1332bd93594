"""Every operator that a round dispatches has a kernel on the device, by torch's own table (``native_functions.yaml``).

An operator is there if the table names a kernel of the device for it or for the one that it is structured by, or if it
is composed of others. The rest must be listed with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest
import torch
import yaml  # type: ignore[import-untyped]

from tests.node.gpu.conftest import Paths

TABLE: Final = Path(torch.__path__[0]).parent / "torchgen/packaged/ATen/native/native_functions.yaml"
STAND_IN: Final = "attention of the stand-in; SDPA has a kernel of its own on both"
WITHOUT_KERNEL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "_scaled_dot_product_flash_attention_for_cpu": STAND_IN,
        "_scaled_dot_product_flash_attention_for_cpu_backward": STAND_IN,
    }
)


@cache
def table() -> dict[str, dict[str, Any]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries = yaml.load(TABLE.read_text(), Loader=loader)
    return {entry["func"].partition("(")[0]: entry for entry in entries}


def backends(operator: str) -> set[str]:
    """Returns the table's keys of an operator; "Composite…" where it is made of others."""
    entry = table()[operator]
    if "structured_delegate" in entry:
        return backends(entry["structured_delegate"])
    if "ufunc_inner_loop" in entry:  # from which the kernels of both are generated
        return {"CPU", "CUDA", *entry.get("dispatch", {})}
    dispatch = entry.get("dispatch") or {"CompositeImplicitAutograd": ""}
    return {key.strip() for keys in dispatch for key in keys.split(",")}


def has_kernel(operator: str, backend: str) -> bool:
    return any(key == backend or key.startswith("Composite") for key in backends(operator))


def missing(paths: Paths, backend: str) -> Iterator[str]:
    dispatched = {operator for found in paths.values() for operator in found["operators"]}
    assert len(dispatched) > 80
    yield from sorted(
        each for each in dispatched if not each.startswith("bitsandbytes.") and not has_kernel(each, backend)
    )


@pytest.mark.processes
@pytest.mark.parametrize(("kind", "backend"), [("cuda", "CUDA"), ("mps", "MPS")])
def test_every_operator_of_a_round_has_a_kernel_on_the_device_or_a_reason(
    kind: str, backend: str, paths: Callable[[str], Paths]
) -> None:
    assert [each for each in missing(paths(kind), backend) if each not in WITHOUT_KERNEL] == []


def test_the_table_tells_what_a_device_lacks() -> None:
    assert has_kernel("mm", "MPS") and has_kernel("add.Tensor", "MPS")
    assert has_kernel("reshape", "MPS"), "composed of others"
    assert not has_kernel("linalg_eig", "MPS") and has_kernel("linalg_eig", "CUDA")
