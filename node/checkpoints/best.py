"""The best checkpoint: of those on disk, the one with the greatest reward on the validation set. Imports no torch.

Each checkpoint's own ``state.json`` holds the evaluation of its weights, if they were evaluated. No second file says
which one is best, so a crash at any moment leaves nothing that could contradict the checkpoints. Of equal rewards the
earlier round is the better. Evaluations on other prompts (``evaluation.prompts`` or the tasks have changed) are not
compared: the best of each such group is kept.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from node.checkpoints.checkpoint_files import STATE, rounds
from node.evaluation.held_out import HeldOutReward

EVALUATION: Final = "evaluation"  # key of a checkpoint's state


@dataclass(frozen=True, slots=True)
class EvaluatedCheckpoint:
    path: Path
    measured: HeldOutReward


def evaluated(folder: Path) -> list[EvaluatedCheckpoint]:
    """Returns the checkpoints whose weights were evaluated, oldest round first."""
    measured = ((path, evaluation_of(path)) for path in rounds(folder))
    return [EvaluatedCheckpoint(path, each) for path, each in measured if each is not None]


def evaluation_of(path: Path) -> HeldOutReward | None:
    """Returns the evaluation of the weights in checkpoint ``path``; None without one, or where that is unreadable."""
    try:
        record: dict[str, Any] = json.loads((path / STATE).read_text())
        measured = msgspec.convert(record["state"][EVALUATION], HeldOutReward)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, msgspec.ValidationError):
        return None
    is_of_these_weights = measured.round == record.get("round")
    return measured if is_of_these_weights and measured.reward_by_task else None


def best_comparable_with(folder: Path, measured: HeldOutReward) -> HeldOutReward | None:
    """Returns the best evaluation on the prompts of ``measured`` among the checkpoints on disk."""
    best = _best(evaluated(folder), measured)
    return None if best is None else best.measured


def best_checkpoint(folder: Path) -> EvaluatedCheckpoint | None:
    """Returns the best checkpoint by evaluations on the prompts of the newest one; None if none was evaluated."""
    found = evaluated(folder)
    return _best(found, found[-1].measured) if found else None


def kept(folder: Path, keep: int) -> set[Path]:
    """Returns the checkpoints that are not to be deleted: the ``keep`` newest, and the best of each kind of evaluation.

    Kinds differ in their prompts, so there is one best checkpoint as long as the configuration stays.
    """
    found = evaluated(folder)
    best = (_best(found, each.measured) for each in found)
    return {*rounds(folder)[-keep:], *(each.path for each in best if each is not None)}


def _best(found: list[EvaluatedCheckpoint], like: HeldOutReward) -> EvaluatedCheckpoint | None:
    alike = [each for each in found if each.measured.comparable_with(like)]
    return max(alike, key=lambda each: each.measured.validation, default=None)
