"""Whether the disk has room for the next checkpoint: known before the first one is due, and without torch."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node.checkpoints.checkpoint_files import rounds, size_bytes_of
from node.configuration import Config
from node.configuration.published import is_hub_id
from node.doctor.findings import Finding, ok, warning
from node.fit.host_memory import machine_bytes
from node.fit.model_sizes import known_sizes
from node.home import Home
from node.policy.model_files import model_folder
from node.quantities import size
from protocol.errors import ConfigurationError

BYTES_A_WEIGHT: Final = 12  # of a first checkpoint: a float32 and AdamW's two moments
USUAL_RANK: Final = 16  # of an adapter, where every weight would not fit
MEMORY_SHARE: Final = 0.5  # that weights and moments may take before an adapter is trained instead


@dataclass(frozen=True, slots=True)
class RoomFacts:
    path: Path
    free_bytes: int
    next_checkpoint_bytes: int | None  # None: not known before the model is loaded
    is_estimate: bool


def room_facts(home: Home, config: Config) -> RoomFacts:
    """Returns the free space and the size of the next checkpoint: that of the newest one, or an estimate."""
    existing = next(path for path in (home.path, *home.path.parents) if path.exists())
    newest = next(reversed(rounds(home.checkpoints)), None)
    needed = size_bytes_of(newest) if newest is not None else first_checkpoint_bytes(config)
    return RoomFacts(home.path, shutil.disk_usage(existing).free, needed, newest is None)


def first_checkpoint_bytes(config: Config) -> int | None:
    """Returns about how many bytes a run's first checkpoint takes; None where counting needs torch or the network."""
    name = config.policy.model
    if is_hub_id(name) and not Path(name).is_dir():
        return None
    try:
        sizes = known_sizes(model_folder(name))
    except (ConfigurationError, OSError):
        return None
    if sizes is None:
        return None
    rank = config.policy.adapter_rank
    if rank == "auto":
        rank = USUAL_RANK if BYTES_A_WEIGHT * sizes.parameters > MEMORY_SHARE * machine_bytes() else 0
    return BYTES_A_WEIGHT * (sizes.adapter_parameters(rank) if rank else sizes.parameters)


def judge_room(facts: RoomFacts) -> Finding:
    needed = facts.next_checkpoint_bytes
    if needed is None or facts.free_bytes >= needed:
        return ok("disk", f"{size(facts.free_bytes)} free at {facts.path}")
    about = "about " if facts.is_estimate else ""
    return warning(
        "disk",
        f"{size(facts.free_bytes)} free at {facts.path}, and the next checkpoint needs {about}{size(needed)}: what "
        "this run learns cannot be kept",
        "free some space there; the node tries again until there is room. Or choose another directory with --home",
    )
