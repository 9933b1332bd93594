"""The machine that a plan is for, where torch must first be asked which device it would train on.

Without a GPU nothing needs torch, and the answer is there at once; otherwise torch is asked in a process of its own.
"""

from __future__ import annotations

import sys

from node.configuration import DtypeName, PolicySection
from node.doctor.gpu_devices import may_have_gpu
from node.doctor.machine_facts import torch_facts
from node.fit.machine import Machine
from node.fit.planning import machine_here
from node.fit.settings import DeviceKind
from node.home import Home
from node.policy.device_probe_result import TorchProbe
from protocol.errors import ConfigurationError


def machine_for(
    home: Home, policy: PolicySection, asked_bytes: int | None = None, max_memory_bytes: int | None = None
) -> Machine:
    """Returns where a node would train. ``asked_bytes`` replaces the memory of that device; ``max_memory_bytes`` is the
    owner's limit of main memory.

    Raises ``ConfigurationError`` for a device that does not work.
    """
    only_cpu = policy.device == "auto" and not may_have_gpu() and sys.platform != "darwin"
    if policy.device == "cpu" or only_cpu:
        return machine_here(home, "cpu", "float32", asked_bytes=asked_bytes, max_memory_bytes=max_memory_bytes)
    facts = torch_facts(policy.device, policy.dtype)
    failure = facts.failure if facts.probe is None else facts.probe.failure
    if facts.probe is None or failure is not None:
        raise ConfigurationError(
            f"torch does not work on policy.device={policy.device} ({failure}): see starling doctor"
        )
    return machine_of(facts.probe, home, asked_bytes, max_memory_bytes)


def machine_of(
    probe: TorchProbe, home: Home, asked_bytes: int | None = None, max_memory_bytes: int | None = None
) -> Machine:
    """Returns the machine that torch has found."""
    kinds: dict[str, DeviceKind] = {"cpu": "cpu", "cuda": "cuda", "mps": "mps"}
    dtype: DtypeName = "bfloat16" if probe.dtype == "bfloat16" else "float32"
    return machine_here(
        home,
        kinds[probe.device],
        dtype,
        probe.device_bytes,
        asked_bytes=asked_bytes,
        max_memory_bytes=max_memory_bytes,
    )
