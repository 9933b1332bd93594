"""A policy as a checkpoint has it, for those that only read: the node may run meanwhile."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import torch

from node.checkpoints import checkpoints
from node.checkpoints.checkpoint_files import rounds
from node.configuration import PolicySection
from node.fit.host_memory import host_memory_bytes
from node.fit.planning import as_trained, trained_by
from node.home import Home
from node.policy.model_counting import counted_sizes
from node.policy.model_files import model_folder
from node.policy.policy import Policy
from node.quantities import size
from node.trying.room import needed_bytes
from protocol.errors import ConfigurationError, StorageError


@dataclass(frozen=True, slots=True, eq=False)
class FoundCheckpoint:
    """A whole checkpoint, read."""

    path: Path
    snapshot: checkpoints.Snapshot


def find_checkpoint(home: Home, checkpoint: Path | None) -> FoundCheckpoint | None:
    """Returns ``checkpoint``, by default the newest complete one in ``home``; None if there is none.

    Raises ``StorageError`` for a given checkpoint that is damaged.
    """
    if checkpoint is not None:
        return FoundCheckpoint(checkpoint, checkpoints.read(checkpoint))
    for path in reversed(rounds(home.checkpoints)):
        with contextlib.suppress(StorageError):  # damaged, or deleted by the node meanwhile: tries the one before
            return FoundCheckpoint(path, checkpoints.read(path))
    return None


def load_untrained(section: PolicySection, found: FoundCheckpoint | None) -> Policy:
    """Loads the base model, with an adapter and in 4 bits where ``found`` was trained so, and as it was before any
    training: the adapter changes nothing yet. Raises ``ConfigurationError`` as ``Policy.load`` and
    ``check_room_for_whole`` do."""
    check_room_for_whole(section)
    return Policy.load(section if found is None else as_trained(section, trained_by(found.snapshot.config)))


def check_room_for_whole(section: PolicySection) -> None:
    """Raises ``ConfigurationError`` where the layers of a node's model are on several machines, and this one cannot
    hold them all."""
    if section.stages == 0:
        return
    needed = needed_bytes(counted_sizes(model_folder(section.model)), None, 0)
    if needed > (room := host_memory_bytes()):
        raise ConfigurationError(
            f"{section.model} is on {section.stages + 1} machines, and this reads all of it: that takes up to "
            f"{size(needed)} of memory, and this machine has {size(room)}. Copy the data directory to a machine with "
            "more, and do it there"
        )


def restore(policy: Policy, found: FoundCheckpoint) -> None:
    """Puts the checkpoint's weights into ``policy``. Raises ``ConfigurationError`` for one of another family of
    policies."""
    snapshot = found.snapshot
    if snapshot.family != policy.family:
        raise ConfigurationError(
            f"{found.path} is a checkpoint of another family of policies ({snapshot.family.hex()}) than {policy.label} "
            f"({policy.family.hex()}): name the model that was trained with --model or policy.model"
        )
    with torch.no_grad():
        for name, parameter in policy.trainable().items():
            parameter.copy_(snapshot.tensors[f"weights.{name}"])
