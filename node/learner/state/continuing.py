"""Where a run goes on from: the newest checkpoint that it can continue from. Damaged ones are kept aside, and named."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.checkpoints.checkpoint_files import ForeignCheckpointError, set_aside, set_aside_folders
from node.checkpoints.checkpoints import read_newest
from node.events import CheckpointsDamaged, DamagedCheckpoint
from node.learner.state.learner_state import LearnerState
from node.learner.state.persistence import restore
from node.learner.steps.optimizer import MasterAdamW
from node.policy.policy import Policy
from protocol.errors import ConfigurationError, StorageError

DAMAGED_NAMED = 8  # in one event, the newest ones

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a run goes on from."""

    state: LearnerState
    pool_position: Mapping[str, Any] | None
    checkpoint: Path | None  # None: from the first round
    damaged: tuple[DamagedCheckpoint, ...]  # newest first

    @property
    def has_lost_all(self) -> bool:
        """Whether there were checkpoints and none of them is left."""
        return bool(self.damaged) and self.checkpoint is None

    def event(self, time_seconds: float, *, asks_peers: bool) -> CheckpointsDamaged | None:
        """Returns the event that tells users of damaged checkpoints; None where none is damaged."""
        if not self.damaged:
            return None
        return CheckpointsDamaged(
            time_seconds=time_seconds,
            damaged=self.damaged[:DAMAGED_NAMED],
            continues_from=self.state.round if self.checkpoint is not None else None,
            asks_peers=asks_peers,
        )


def continued(folder: Path, policy: Policy, optimizer: MasterAdamW) -> Continuation:
    """Restores the newest checkpoint that a run can continue from. Newer ones that are damaged, or whole and of no use
    to any start, are set aside: nothing deletes them there, and no later start reads them.

    A directory whose checkpoints an earlier start set aside, and which has none since, has lost all of them too. Raises
    ``ConfigurationError`` for checkpoints of another policy, and for one that may be whole and cannot be read here.
    """
    damaged: list[DamagedCheckpoint] = []
    while True:
        try:
            newest = read_newest(folder)
        except ForeignCheckpointError as error:
            raise ConfigurationError(str(error)) from error
        damaged += [_kept_aside(path, because) for path, because in newest.damaged]
        try:
            state, pool_position = restore(newest, folder, policy, optimizer)
        except StorageError as error:
            assert newest.path is not None
            kept = _kept_aside(newest.path, str(error))
            if kept.aside == str(newest.path):  # it would be read again
                raise
            damaged.append(kept)
            continue
        if newest.path is None and not damaged:
            damaged = [_set_aside_before(path) for path in reversed(set_aside_folders(folder))]
        return Continuation(state, pool_position, newest.path, tuple(damaged))


def _kept_aside(path: Path, because: str) -> DamagedCheckpoint:
    try:
        aside = set_aside(path)
    except OSError as error:
        log.error("%s could not be set aside: %s", path, error)
        aside = path
    log.warning("%s: it is kept aside as %s", because, aside)
    return DamagedCheckpoint(path.name, because, str(aside))


def _set_aside_before(path: Path) -> DamagedCheckpoint:
    name = path.name.removeprefix("set-aside-").rpartition("-")[0]
    return DamagedCheckpoint(name, "an earlier start found it damaged", str(path))
