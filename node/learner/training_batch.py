"""What the optimizer step is taken on: groups in the learner's own tokens, with advantages and behaviour spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from node.learner.advantages import group_advantages, learner_relative_advantages
from node.learner.off_policy import Alignment, align
from node.learner.rollouts import Rollout
from node.tokens import TokenTable
from protocol.rollouts import Completion, FinishReason, Group

SELF = "self"  # the peer name of own completions


@dataclass(frozen=True, slots=True, eq=False)
class TrainingCompletion:
    """One completion that has a gradient."""

    token_ids: NDArray[np.int64]  # (T,) in the learner's tokenizer, T >= 1
    alignment: Alignment  # of these T tokens with the generator's
    advantage: float
    peer: str  # who generated it; ``SELF`` for own
    count: int = 1  # how many of the group's completions are exactly this one

    @property
    def foreign(self) -> bool:
        return self.peer != SELF


@dataclass(frozen=True, slots=True, eq=False)
class TrainingGroup:
    """One prompt with those of its completions whose advantage is not zero.

    A completion with A = 0 has no gradient and costs no forward pass, yet its tokens count in the normalisation. Equal
    completions, which short right answers often are, are computed once and counted as often as they occur.
    """

    prompt_ids: tuple[int, ...]  # (P,) P >= 1
    completions: tuple[TrainingCompletion, ...]
    tokens: int  # completion tokens of the whole group, those with A = 0 included


def own_training_group(rollout: Rollout, rewards: Sequence[float]) -> TrainingGroup:
    """Own groups keep their group advantage; the behaviour is what the engine recorded while sampling."""
    advantages = group_advantages(np.array(rewards, dtype=np.float32))
    completions = tuple(
        TrainingCompletion(
            sample.token_ids, Alignment(np.arange(len(sample.token_ids)), sample.logps, 0), float(advantage), SELF
        )
        for sample, advantage in zip(rollout.samples, advantages, strict=True)
        if advantage != 0 and len(sample.token_ids) > 0
    )
    return TrainingGroup(rollout.prompt_ids, _merged(completions), rollout.tokens)


def foreign_training_group(
    group: Group,
    prompt_ids: tuple[int, ...],
    rewards: Sequence[float],
    *,
    peer: str,
    tokens: TokenTable,
    advantage: Literal["learner", "group"],
    success: float,
    context: int,
) -> TrainingGroup:
    """A checked foreign group in our own tokens; ``success`` is V_θ of its class, ``context`` our model's positions.

    A completion that our tokenizer cannot write, or that does not fit the context, is left out; its reward counted in
    the group's mean all the same.
    """
    scores = np.array(rewards, dtype=np.float32)
    advantages = group_advantages(scores) if advantage == "group" else learner_relative_advantages(scores, success)
    completions: list[TrainingCompletion] = []
    total = 0
    for completion, each in zip(group.completions, advantages, strict=True):
        own = _in_own_tokens(completion, tokens, same_tokenizer=group.tokenizer == tokens.fingerprint)
        if own is None or len(prompt_ids) + len(own[0]) > context:
            continue
        total += len(own[0])
        if each == 0:
            continue
        stopped = completion.finish is FinishReason.STOP
        alignment = align(own[1], completion.token_bytes, completion.logps, end_of_sequence=stopped)
        if alignment is not None:
            completions.append(TrainingCompletion(own[0], alignment, float(each), peer))
    return TrainingGroup(prompt_ids, _merged(completions), total)


def _merged(completions: Iterable[TrainingCompletion]) -> tuple[TrainingCompletion, ...]:
    """Equal completions as one. Their behaviour log-probabilities are equal too, up to rounding in other batches."""
    found: dict[tuple[bytes, bytes, float], TrainingCompletion] = {}
    for each in completions:
        key = each.token_ids.tobytes(), each.alignment.span_of_token.tobytes(), each.advantage
        before = found.get(key)
        found[key] = each if before is None else replace(before, count=before.count + each.count)
    return tuple(found.values())


def _in_own_tokens(
    completion: Completion, tokens: TokenTable, *, same_tokenizer: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Ids and byte lengths (T,) each, end-of-sequence included where the generator sampled it."""
    if same_tokenizer:
        return completion.token_ids, completion.token_bytes
    own = tokens.tokenize_completion(completion.text)
    if own is None:
        return None
    end = completion.finish is FinishReason.STOP
    ids = np.array([*own[0], *([tokens.eos_id] if end else [])], dtype=np.int64)
    return ids, np.array([*own[1], *([0] if end else [])], dtype=np.int64)
