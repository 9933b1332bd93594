"""Why a model does not fit, by how much, and the nearest that would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from node.configuration import Config
from node.fit.candidates import Trained, candidates, with_keys
from node.fit.footprint import Place, footprint_of
from node.fit.machine import Machine
from node.fit.model_sizes import ModelSizes
from node.fit.settings import MemorySettings, assignments_of, described
from node.fit.workload import Workload
from node.quantities import size

LONG_ANSWER: Final = 256  # tokens; above, shorter answers help


def refusal(
    config: Config,
    sizes: ModelSizes,
    machine: Machine,
    workload: Workload,
    every: Sequence[MemorySettings],
    kept: Trained | None,
) -> str:
    """Returns the message for a model that does not fit: by how much, and what would."""
    least = min(every, key=lambda each: machine.excess_bytes(footprint_of(sizes, each, workload, machine.device)))
    footprint = footprint_of(sizes, least, workload, machine.device)
    device_bytes = machine.usable_device_bytes
    place: Place = "host"
    have, where = machine.host_bytes, f"main memory ({machine.narrowest.name})"
    if device_bytes is not None and footprint.peak_bytes("device") > device_bytes:
        place, have, where = "device", device_bytes, "the GPU"
    peak = footprint.peak(place)
    return (
        f"{config.policy.model} does not fit: {described(least)} takes {size(peak.bytes(place))} while {peak.name}, "
        f"{size(machine.excess_bytes(footprint))} more than the {size(have)} that may be used of {where}; "
        f"{_nearest(config, sizes, machine, workload, kept)}"
    )


def _nearest(config: Config, sizes: ModelSizes, machine: Machine, workload: Workload, kept: Trained | None) -> str:
    """Returns the remedy: which settings would fit if the person's were given up, or how large a model would."""
    free = with_keys(
        config,
        policy={"adapter_rank": "auto", "four_bit": "auto", "dtype": "auto"},
        engine={"rows": "auto"},
        learner={"batch_tokens": "auto", "recompute": "auto", "optimizer": "auto"},
    )
    near = next(
        (
            each
            for each in candidates(free, machine, kept)
            if machine.excess_bytes(footprint_of(sizes, each, workload, machine.device)) <= 0
        ),
        None,
    )
    if near is not None:
        return f"{assignments_of(near)} would fit"
    lengths = "shorter answers" if workload.answer_tokens > LONG_ANSWER else "fewer groups"
    return f"take a model of at most {_largest_model(free, sizes, machine, workload)}, more memory, or {lengths}"


def _largest_model(config: Config, sizes: ModelSizes, machine: Machine, workload: Workload) -> str:
    """Returns how many weights a model of these proportions may have, in words."""
    smallest = list(candidates(config, machine, None))[-1]
    for eighths in range(7, 0, -1):
        share = eighths / 8
        smaller = scaled(sizes, share)
        if machine.excess_bytes(footprint_of(smaller, smallest, workload, machine.device)) <= 0:
            return f"{smaller.parameters / 1e9:.1f} billion weights"
    return "a built-in one's size (builtin:wren)"


def scaled(sizes: ModelSizes, share: float) -> ModelSizes:
    """Returns a model with that share of the layers and of the vocabulary."""
    layers, vocabulary = max(1, int(sizes.layers * share)), max(1, int(sizes.vocabulary * share))
    return msgspec.structs.replace(
        sizes,
        layers=layers,
        vocabulary=vocabulary,
        embedding_parameters=vocabulary * sizes.hidden,
        head_parameters=0 if sizes.tied else vocabulary * sizes.hidden,
        norm_parameters=max(1, int(sizes.norm_parameters * share)),
    )
