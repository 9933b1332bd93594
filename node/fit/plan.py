"""Chooses every setting that costs memory, so that a model fits a machine. Pure: ``make_plan`` of facts.

Order of preference; the first that fits is taken:

1. Every weight is trained, with room to average weights with peers: AdamW in float32, checkpoints written beside the
   rounds; then checkpoints in turn with the rounds; then AdamW in 8 bits; then, on a GPU, on the host; then smaller
   passes, recomputation and chunks; then fewer rows.
2. The same without room to average and to publish weights: groups are shared all the same.
3. An adapter of rank 16, in the same two ways: merged for generation; applied beside the weights; smaller passes, and
   so on. On a CPU, where weights are float32, an adapter on bfloat16 weights comes after that.
4. On a GPU, an adapter on weights in 4 bits.

What a person set is kept, and is refused where nothing fits with it. Whether an adapter is trained, and on 4-bit
weights, decides the policy's family, so it is decided from totals, never from what happens to be free; a directory that
has a checkpoint keeps what that was trained with. After running out of memory only rows and passes shrink,
and layers are recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from node.configuration import DEFAULT_STORE_BYTES, Config
from node.fit.candidates import CHUNK_TOKENS, Trained, candidates
from node.fit.footprint import Footprint, footprint_of
from node.fit.machine import Machine
from node.fit.model_sizes import ModelSizes
from node.fit.refusal import refusal
from node.fit.settings import MemorySettings
from node.fit.workload import Workload
from protocol.errors import ConfigurationError

STORE_SHARE: Final = 2.5  # stores hold twice an anchor, and their diffs, if peers are to get it
DISK_SHARE: Final = 0.5  # of what is free, at most for the store beyond its usual size
KILLED_SHARE: Final = 0.1  # of the budget, given up for each time that the system killed the learner
MAX_KILLED: Final = 3


class FittedSizes(Protocol):
    """What running out of memory has taught (``node.fit.fitted``)."""

    @property
    def rows(self) -> int: ...
    @property
    def batch_tokens(self) -> int: ...
    @property
    def recompute(self) -> bool: ...
    @property
    def learner_killed(self) -> int: ...


class Plan(Struct, frozen=True, kw_only=True):
    """The settings to run with, what they take, and what may be filled."""

    settings: MemorySettings
    footprint: Footprint
    host_limit_bytes: int
    device_limit_bytes: int | None
    because: str  # in words


def make_plan(
    config: Config,
    sizes: ModelSizes,
    machine: Machine,
    workload: Workload,
    *,
    kept: Trained | None = None,
    fitted: FittedSizes | None = None,
) -> Plan:
    """Returns the first settings in the order above that fit. ``kept`` is what a checkpoint was trained with.

    Raises ``ConfigurationError`` if none fits: by how much, and the nearest that would.
    """
    every = list(candidates(config, machine, kept))
    if not every:
        raise ConfigurationError(
            "policy.four_bit = true, and the checkpoint here was trained without an adapter: weights in 4 bits cannot "
            "be trained themselves; set four_bit to false, or choose another --home"
        )
    found = next((each for each in every if _fits(each, sizes, machine, workload)), None)
    if found is None:
        raise ConfigurationError(refusal(config, sizes, machine, workload, every, kept))
    shrunk = _after_running_out(every, found, sizes, machine, workload, fitted)
    settings = _with_store(config, shrunk, sizes, machine, workload)
    footprint = footprint_of(sizes, settings, workload, machine.device)
    return Plan(
        settings=settings,
        footprint=footprint,
        host_limit_bytes=machine.host_bytes,
        device_limit_bytes=machine.usable_device_bytes,
        because=_because(config, settings, kept),
    )


def _fits(
    settings: MemorySettings, sizes: ModelSizes, machine: Machine, workload: Workload, share: float = 1.0
) -> bool:
    return machine.excess_bytes(footprint_of(sizes, settings, workload, machine.device), share) <= 0


def _after_running_out(
    every: Sequence[MemorySettings],
    found: MemorySettings,
    sizes: ModelSizes,
    machine: Machine,
    workload: Workload,
    fitted: FittedSizes | None,
) -> MemorySettings:
    """Returns settings of the same family for what memory has turned out to hold, whatever the formulas say."""
    if fitted is None:
        return found
    family = [
        each
        for each in every[every.index(found) :]
        if (each.adapter_rank, each.four_bit, each.dtype) == (found.adapter_rank, found.four_bit, found.dtype)
    ]
    share = 1.0 - KILLED_SHARE * min(fitted.learner_killed, MAX_KILLED)
    smaller = next((each for each in family if _fits(each, sizes, machine, workload, share)), family[-1])
    begun = msgspec.structs.replace(
        smaller,
        rows=min(smaller.rows, fitted.rows),
        batch_tokens=min(smaller.batch_tokens, fitted.batch_tokens),
    )
    may_recompute = any(each.recompute for each in family)  # otherwise a person has set that it must not
    if fitted.recompute and may_recompute and not begun.recompute:
        return msgspec.structs.replace(begun, recompute=True, chunk_tokens=CHUNK_TOKENS)
    return begun


def _with_store(
    config: Config, settings: MemorySettings, sizes: ModelSizes, machine: Machine, workload: Workload
) -> MemorySettings:
    """Returns settings whose store has room to publish the weights, as far as the disk allows."""
    if config.swarm.store_bytes != "auto" or not (workload.publishes and settings.averages):
        return settings
    footprint = footprint_of(sizes, settings, workload, machine.device)
    checkpoints = (workload.checkpoints_kept + 1) * footprint.checkpoint_bytes
    most = int(DISK_SHARE * max(0, machine.disk_free_bytes - checkpoints))
    wanted = int(STORE_SHARE * footprint.published_bytes)
    return msgspec.structs.replace(settings, store_bytes=max(DEFAULT_STORE_BYTES, min(wanted, most)))


def _because(config: Config, settings: MemorySettings, kept: Trained | None) -> str:
    if config.policy.adapter_rank != "auto":
        return f"policy.adapter_rank is {config.policy.adapter_rank}"
    if kept is not None:
        return "the checkpoint here was trained so"
    if config.policy.four_bit is True:
        return "policy.four_bit is true"
    if settings.four_bit:
        return "nothing else fits than an adapter on 4-bit weights"
    return "training every weight does not fit" if settings.adapter_rank else "every weight is trained where that fits"
