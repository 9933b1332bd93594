"""Groups whose generation was stopped before all their completions had ended, between two rounds and in checkpoints.

Only the reference of the prompt is kept. Prompt and ids are made again when the group is resumed, which then detects a
group whose task has changed since, or which no longer fits the model's context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import torch
from torch import Tensor

from node.engines.engine import GenerationProgress, Partial, Sample, Segment
from protocol.errors import StorageError
from protocol.messages import PromptRef
from protocol.rollouts import FinishReason

TOKENS: Final = "unfinished.token_ids"  # (N,) int64, all sequences of all groups after each other
LOGPS: Final = "unfinished.logps"  # (N,) float32


@dataclass(frozen=True, slots=True, eq=False)
class UnfinishedGroup:
    ref: PromptRef
    completions: int
    progress: GenerationProgress


def snapshot_of_unfinished(groups: Sequence[UnfinishedGroup]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Returns tensors and JSON for a checkpoint; no tensors where nothing was sampled."""
    sequences = [s for group in groups for s in group.progress.sequences]
    records = [
        {
            "ref": msgspec.to_builtins(group.ref),
            "completions": group.completions,
            "sequences": [_record(sequence) for sequence in group.progress.sequences],
        }
        for group in groups
    ]
    if not sequences:
        return {}, records
    return {
        TOKENS: torch.from_numpy(np.concatenate([s.token_ids for s in sequences])),
        LOGPS: torch.from_numpy(np.concatenate([s.logps for s in sequences])),
    }, records


def _record(sequence: Sample | Partial) -> list[Any]:
    finish = sequence.finish.value if isinstance(sequence, Sample) else None
    observed = [[place, list(ids)] for place, ids in sequence.observed]
    heard = [observed, list(sequence.anew)] if observed else []
    return [finish, [[each.version, each.tokens] for each in sequence.segments], *heard]


def restored_unfinished(
    tensors: Mapping[str, Tensor], records: Sequence[Mapping[str, Any]]
) -> tuple[UnfinishedGroup, ...]:
    """Returns the groups that ``snapshot_of_unfinished`` took. Raises ``StorageError`` where tensors and records
    disagree."""
    token_ids = tensors.get(TOKENS, torch.empty(0, dtype=torch.int64)).numpy()
    logps = tensors.get(LOGPS, torch.empty(0)).numpy()
    groups: list[UnfinishedGroup] = []
    position = 0
    for record in records:
        samples: list[Sample] = []
        partials: list[Partial] = []
        for finish, segments_read, *more in record["sequences"]:
            segments = tuple(Segment(int(version), int(tokens)) for version, tokens in segments_read)
            part = slice(position, position + sum(segment.tokens for segment in segments))
            position = part.stop
            observed = tuple((int(place), tuple(map(int, ids))) for place, ids in (more[0] if more else ()))
            heard = observed, tuple(map(int, more[1] if more else ()))
            if finish is None:
                partials.append(Partial(token_ids[part], logps[part], segments, *heard))
            else:
                samples.append(Sample(token_ids[part], logps[part], FinishReason(finish), segments, *heard))
        ref = msgspec.convert(record["ref"], PromptRef)
        groups.append(
            UnfinishedGroup(ref, int(record["completions"]), GenerationProgress(tuple(samples), tuple(partials)))
        )
    if not position == len(token_ids) == len(logps):
        raise StorageError(
            f"the checkpoint's unfinished groups have {position} tokens by its record, and {len(token_ids)} tokens and "
            f"{len(logps)} log-probabilities in its tensors: move the checkpoint away"
        )
    return tuple(groups)
