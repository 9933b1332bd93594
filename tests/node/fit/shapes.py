"""Sizes, machines and workloads that the tests of ``node.fit`` plan for."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from node.configuration import DEFAULT_BATCH_TOKENS, DEFAULT_ROWS, DEFAULT_STORE_BYTES, Config
from node.fit.machine import Limit, Machine
from node.fit.model_sizes import ModelSizes, sizes_from
from node.fit.settings import MemorySettings
from node.fit.workload import Workload
from scripts.bench.common.published_shapes import config_of

GB = 10**9
ROUND = Workload(
    prompt_tokens=200, answer_tokens=100, own_groups=32, foreign_groups=32, completions=4, checkpoints_kept=2
)
PLAIN = MemorySettings(
    dtype="float32",
    adapter_rank=0,
    four_bit=False,
    rows=DEFAULT_ROWS,
    batch_tokens=DEFAULT_BATCH_TOKENS,
    recompute=False,
    chunk_tokens=None,
    optimizer="adamw",
    merge_adapters=True,
    store_bytes=DEFAULT_STORE_BYTES,
)


def sizes(shape: str, *, layers: int | None = None) -> ModelSizes:
    found = sizes_from(config_of(shape, layers=layers), shape)
    assert found is not None
    return found


def cpu(memory_bytes: int, **changes: Any) -> Machine:
    machine = Machine(
        device="cpu", dtype="float32", limits=(Limit("test", memory_bytes, 1.0),), disk_free_bytes=500 * GB
    )
    return replace(machine, **changes)


def gpu(device_bytes: int, host_bytes: int = 256 * GB) -> Machine:
    return cpu(host_bytes, device="cuda", dtype="bfloat16", device_bytes=device_bytes, device_share=1.0)


def config(**sections: dict[str, Any]) -> Config:
    return Config.model_validate({"policy": {"model": "tests/model"}, **sections})


def limited_to(data_bytes: int) -> Callable[[int], tuple[int, int]]:
    """Returns a stand-in for ``resource.getrlimit`` in a process whose data is limited."""

    def getrlimit(kind: int) -> tuple[int, int]:
        return (data_bytes if kind == resource.RLIMIT_DATA else resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    return getrlimit
