"""Collects what ``plan.make_plan`` needs: the model's sizes, the machine, and what a checkpoint was trained with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from node.checkpoints.checkpoint_files import CONFIG, rounds
from node.configuration import DtypeName, PolicySection, chosen
from node.fit.candidates import Trained
from node.fit.machine import LIMIT_SHARE, Limit, Machine, disk_free_bytes, host_limits
from node.fit.model_sizes import ModelSizes, known_sizes
from node.fit.settings import DeviceKind
from node.home import Home
from node.policy.torch_process import NoAnswer, ask_torch
from protocol.errors import ConfigurationError


def machine_here(
    home: Home,
    device: DeviceKind,
    dtype: DtypeName,
    device_bytes: int | None = None,
    *,
    asked_bytes: int | None = None,
    max_memory_bytes: int | None = None,
) -> Machine:
    """Returns the facts of this machine. ``asked_bytes`` replaces what it has, of the GPU where it trains on one;
    ``max_memory_bytes`` is the owner's limit of main memory, ``machine.max_memory``."""
    limits, share = host_limits(), None
    if max_memory_bytes is not None:
        limits = (*limits, Limit("machine.max_memory", max_memory_bytes, LIMIT_SHARE))
    if asked_bytes is not None and device == "cuda":
        device_bytes, share = asked_bytes, 1.0
    elif asked_bytes is not None:
        limits = (Limit("as asked for", asked_bytes, 1.0),)
    machine = Machine(
        device=device,
        dtype=dtype,
        limits=limits,
        device_bytes=device_bytes,
        disk_free_bytes=disk_free_bytes(home.path),
    )
    return machine if share is None else msgspec.structs.replace(machine, device_share=share)


def sizes_of(folder: Path) -> ModelSizes:
    """Returns the sizes of the model in ``folder``; torch, in a process of its own, counts an unknown architecture.

    Raises ``ConfigurationError``.
    """
    known = known_sizes(folder)
    if known is not None:
        return known
    counted = ask_torch("node.policy.model_counting", str(folder), answer=ModelSizes)
    if isinstance(counted, NoAnswer):
        raise ConfigurationError(f"the model in {folder} cannot be counted: {counted.reason}")
    return counted


def trained_here(home: Home) -> Trained | None:
    """Returns what the newest checkpoint of the data directory was trained with; None where there is none.

    Whether the checkpoint is whole does not matter for that; one without a readable configuration is not counted.
    """
    for path in reversed(rounds(home.checkpoints)):
        try:
            return trained_by(json.loads((path / CONFIG).read_text()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return None


def trained_by(config: Mapping[str, Any]) -> Trained:
    """Returns what a checkpoint's stored configuration trained. Raises ``KeyError`` where it does not say."""
    policy = config["policy"]
    rank, four_bit = policy["adapter_rank"], policy.get("four_bit", False)
    return Trained(int(chosen(rank, 0)), bool(chosen(four_bit, False)))


def as_trained(section: PolicySection, trained: Trained) -> PolicySection:
    """Returns ``section`` with what is left open there as a checkpoint was trained."""
    rank, four_bit = chosen(section.adapter_rank, trained.adapter_rank), chosen(section.four_bit, trained.four_bit)
    return section.model_copy(update={"adapter_rank": rank, "four_bit": four_bit})
