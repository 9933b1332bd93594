"""What is exported: a checkpoint, which names the model that it was trained from. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from pydantic import ValidationError

from node.checkpoints.best import EVALUATION
from node.checkpoints.checkpoint_files import read_whole
from node.checkpoints.choice import named_checkpoint, newest_whole
from node.configuration import PolicySection
from node.evaluation.held_out import HeldOutReward
from node.home import Home
from protocol.errors import ConfigurationError, StorageError


@dataclass(frozen=True, slots=True)
class Source:
    """A whole checkpoint, its tensors not read yet."""

    path: Path
    round: int
    family: bytes
    policy: PolicySection  # as configured when it was written
    state: Mapping[str, Any]
    config: Mapping[str, Any]  # the whole configuration, resolved
    evaluation: HeldOutReward | None  # of these weights

    @property
    def metrics(self) -> Path:
        """The record of the run that wrote it, if the checkpoint lies in its data directory still."""
        return self.path.absolute().parents[1] / "metrics.jsonl"


def source_of(home: Home, checkpoint: str | None, model: str | None) -> Source:
    """Returns the checkpoint that the user names, the newest of ``home`` by default; ``model`` replaces its base model.

    Raises ``ConfigurationError`` where there is none, ``StorageError`` for a damaged one.
    """
    if checkpoint is not None:
        path = named_checkpoint(home.checkpoints, checkpoint)
        state, config = read_whole(path)
    else:
        newest = newest_whole(home.checkpoints)
        if newest is None:
            raise ConfigurationError(
                f"there is no whole checkpoint in {home.checkpoints}: name the node's data directory with --home or a "
                "checkpoint with --checkpoint, or train with starling up"
            )
        path, state, config = newest
    try:
        policy = PolicySection.model_validate(config["policy"])
        measured = msgspec.convert(state["state"].get(EVALUATION), HeldOutReward | None)
        number, family = int(state["round"]), bytes.fromhex(state["family"])
        learnt: dict[str, Any] = dict(state["state"])
    except (KeyError, TypeError, ValueError, AttributeError, ValidationError, msgspec.ValidationError) as error:
        raise StorageError(
            f"{path} was written by another version of starling, or is damaged ({type(error).__name__}: {error}): "
            "export it with the version that wrote it"
        ) from None
    if model is not None:
        policy = policy.model_copy(update={"model": model})
    of_these_weights = measured if measured is not None and measured.round == number else None
    return Source(path, number, family, policy, learnt, config, of_these_weights)
