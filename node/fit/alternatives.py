"""The ways to train a model, each at its smallest: for the table of ``starling fit``."""

from __future__ import annotations

from msgspec import Struct

from node.configuration import Config, OptimizerName
from node.fit.candidates import ADAPTER_RANK, Trained, candidates, with_keys
from node.fit.footprint import footprint_of
from node.fit.machine import Machine
from node.fit.model_sizes import ModelSizes
from node.fit.workload import Workload


class Alternative(Struct, frozen=True, kw_only=True):
    """One way to train, at the smallest settings, for the table of ``starling fit``."""

    name: str
    fits: bool
    host_bytes: int  # at the peak
    device_bytes: int | None


def alternatives(config: Config, sizes: ModelSizes, machine: Machine, workload: Workload) -> list[Alternative]:
    """Returns whole in float32, whole in 8 bits, adapter, and adapter on 4-bit weights, each as small as it gets."""
    ways: list[tuple[str, Trained, OptimizerName]] = [
        ("whole, AdamW in float32", Trained(0, four_bit=False), "adamw"),
        ("whole, AdamW in 8 bits", Trained(0, four_bit=False), "adamw8bit"),
        ("adapter (LoRA)", Trained(ADAPTER_RANK, four_bit=False), "adamw"),
        ("adapter, 4-bit weights (QLoRA)", Trained(ADAPTER_RANK, four_bit=True), "adamw"),
    ]
    found = []
    for name, trained, optimizer in ways:
        so = with_keys(
            config,
            policy={"adapter_rank": trained.adapter_rank, "four_bit": trained.four_bit},
            learner={"optimizer": optimizer},
        )
        footprints = [footprint_of(sizes, each, workload, machine.device) for each in candidates(so, machine, None)]
        least = min(footprints, key=machine.excess_bytes)
        found.append(
            Alternative(
                name=name,
                fits=machine.excess_bytes(least) <= 0,
                host_bytes=least.peak_bytes("host"),
                device_bytes=None if machine.usable_device_bytes is None else least.peak_bytes("device"),
            )
        )
    return found
