"""From a group of completions, own or foreign, and its rewards to what the optimizer step is taken on.

The log-probabilities of a foreign group cannot be checked without its policy's weights, but those that no policy can
have are found (``usable_logps``):

- Form. A completion has as many log-probabilities as tokens, all finite and none above 0.
- Surprise. Under μ itself, E[1/μ(y)] is the number of sequences of that length, at most V^T, so by Markov's inequality
  −log μ(y) > T·log V + k has a probability below e^−k. Taken with V = 2^18 and k = 14.
- Mass. Distinct completions of one prompt exclude each other, so their probabilities sum to at most 1. A peer that
  sends zeros, because it has no real ones or to gain weight, sends a sum of G. The limit is 2: a group that was resumed
  after a change of weights comes from two policies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from node.configuration import ObjectiveSection
from node.engines.engine import Observed, Sample
from node.environments.conversation import Played
from node.learner.generation.own_rollouts import Rollout
from node.learner.objective.advantages import (
    AdvantageRule,
    capability_advantages,
    learner_relative_advantages,
    turn_advantages,
)
from node.learner.objective.alignment import Alignment, align, joined, text_alignment, token_alignment
from node.learner.objective.batch import SELF, TrainingCompletion, TrainingGroup, by_token, merged
from node.learner.objective.weights import CORRECTIONS
from node.policy.tokens import TokenTable
from node.tasks.task import Prompt
from protocol.rollouts import Completion, FinishReason, Group

VOCABULARY_NATS: Final = 18 * math.log(2)
SURPRISE_MARGIN_NATS: Final = 14.0  # e^-14 is one in a million
MAX_MASS: Final = 2.0


def usable_logps(group: Group) -> tuple[bool, ...]:
    """Returns for each of the G completions whether its log-probabilities can be those of its sampler."""
    plausible = tuple(_plausible(completion) for completion in group.completions)
    distinct = {
        (c.token_ids.tobytes(), c.finish): float(c.logps.sum(dtype=np.float64))
        for c, fine in zip(group.completions, plausible, strict=True)
        if fine
    }
    if sum(math.exp(logp) for logp in distinct.values()) > MAX_MASS:
        return (False,) * len(plausible)
    return plausible


def _plausible(completion: Completion) -> bool:
    logps, tokens = completion.logps, len(completion.token_ids)
    if len(logps) != tokens or not np.isfinite(logps).all() or bool((logps > 0).any()):
        return False
    return -float(logps.sum(dtype=np.float64)) <= tokens * VOCABULARY_NATS + SURPRISE_MARGIN_NATS


def own_training_group(
    rollout: Rollout, rewards: Sequence[float], section: ObjectiveSection, rule: AdvantageRule
) -> TrainingGroup:
    """Returns an own group with the advantages of ``rule``; its behaviour is what the engine recorded."""
    by_turn: Sequence[tuple[float, ...]] = [()] * len(rewards)
    if rule.method == "turn" and rollout.conversed is not None:
        advantages, by_turn = _of_turns(rollout.samples, rollout.conversed.played)
    else:
        advantages = rule(np.array(rewards, dtype=np.float32))
    completions = tuple(
        TrainingCompletion(
            sample.token_ids,
            token_alignment(sample.logps),
            float(advantage),
            SELF,
            reward=float(reward),
            segments=sample.segments,
            observed=sample.observed,
            anew=sample.anew,
            turn_advantages=of_turns,
        )
        for sample, reward, advantage, of_turns in zip(rollout.samples, rewards, advantages, by_turn, strict=True)
        if (advantage != 0 or section.kl_weight > 0) and len(sample.token_ids) > 0
    )
    return TrainingGroup(rollout.prompt_ids, merged(completions), rollout.tokens, len(rollout.samples))


def _of_turns(
    samples: Sequence[Sample], played: Sequence[Played | None]
) -> tuple[NDArray[np.float32], list[tuple[float, ...]]]:
    """Returns of each conversation the mean over its tokens of |A|, (G,), and the advantages of its actions. One whose
    environment failed has earned nothing."""
    turns = [len(sample.observed) + 1 for sample in samples]
    found = turn_advantages([() if each is None else each.turn_rewards for each in played], max(turns))
    by_turn = [tuple(row[:own].tolist()) for row, own in zip(found, turns, strict=True)]
    means = [
        float(np.abs(by_token(of_turns, sample.observed, len(sample.token_ids))).mean())
        for of_turns, sample in zip(by_turn, samples, strict=True)
    ]
    return np.array(means, dtype=np.float32), by_turn


def foreign_training_group(
    group: Group,
    prompt_ids: tuple[int, ...],
    rewards: Sequence[float],
    *,
    peer: str,
    tokens: TokenTable,
    section: ObjectiveSection,
    rule: AdvantageRule,
    success: float,
    context: int,
    max_new_tokens: int,
    capability_ratio: float = 1.0,
    is_canonical: Callable[[Completion], bool] = lambda completion: True,
    played: Sequence[Played] = (),
    asked: Prompt | None = None,
) -> TrainingGroup:
    """Returns a checked foreign group in the learner's own tokens.

    ``played`` is what conversations led to here, which is what their actions are learnt after; they began with
    ``asked``. ``success`` is V_θ of the prompt's class, ``capability_ratio`` κ for advantages by capability,
    ``context`` the number of the model's positions, ``max_new_tokens`` the task's limit, which holds for our own tokens
    of each turn. A completion that the own tokenizer cannot write, or that does not fit the context, is left out, but
    its reward counts in the group's mean. The same holds for a completion whose claimed log-probabilities are
    impossible, unless ``unusable_logps`` takes it as text.

    A completion that would be made likelier is left out, and its reason noted, unless it is worth copying: it
    ``is_canonical``, ended by itself, and is within the limit. Being right is not enough: what is copied is its every
    token, those around the answer too.
    """
    scores = np.array(rewards, dtype=np.float32)
    baseline_of = section.research.foreign_advantage
    relative = baseline_of == "learner"
    if relative:
        advantages = learner_relative_advantages(scores, success)
    elif baseline_of == "capability":
        advantages = capability_advantages(scores, capability_ratio, success)
    else:
        advantages = rule(scores)
    usable = usable_logps(group)
    other_tokenizer = group.tokenizer != tokens.fingerprint
    all_as_text = other_tokenizer and CORRECTIONS[section.correction].other_tokenizers_as_text
    completions: list[TrainingCompletion] = []
    not_copied: list[str] = []
    total = size = 0
    heard = [each.observations for each in played] or [()] * len(scores)
    rows = zip(group.completions, usable, advantages, scores, heard, strict=True)
    for completion, fine, each, reward, observations in rows:
        if not fine and section.research.unusable_logps == "drop":
            continue
        as_text = all_as_text or not fine
        own = _in_own_tokens(
            completion, observations, tokens, asked=asked, same_tokenizer=not other_tokenizer, as_text=as_text
        )
        if own is None or own.longest_row(len(prompt_ids)) > context:
            continue
        if each > 0:
            because = _not_worth_copying(completion, own.longest_turn, max_new_tokens, is_canonical)
            if because is not None:
                not_copied.append(because)
                continue
        elif own.longest_turn > max_new_tokens or relative:
            continue
        total, size = total + len(own.ids), size + 1
        if each == 0:
            continue
        if own.alignment is not None:
            completions.append(
                TrainingCompletion(
                    own.ids, own.alignment, float(each), peer,
                    reward=float(reward), as_text=as_text, observed=own.observed, anew=own.anew,
                )
            )  # fmt: skip
    unusable = len(usable) - sum(usable)
    return TrainingGroup(prompt_ids, merged(completions), total, size, unusable, tuple(not_copied))


@dataclass(frozen=True, slots=True, eq=False)
class _OwnTokens:
    """A completion in our own tokens."""

    ids: NDArray[np.int64]  # (T,), with end-of-sequence where the generator sampled it
    alignment: Alignment | None  # None: nothing can be aligned
    observed: Observed
    anew: tuple[int, ...]
    longest_turn: int  # tokens

    def longest_row(self, prompt_tokens: int) -> int:
        """Returns the most tokens that the model has before it, after a prompt of so many."""
        before, longest, place = prompt_tokens, 0, 0
        for at, ids in (*self.observed, (len(self.ids), ())):
            before += at - place
            longest, place = max(longest, before), at
            before = len(ids) + (0 if at in self.anew else before)
        return longest


def _not_worth_copying(
    completion: Completion, longest_turn: int, max_new_tokens: int, is_canonical: Callable[[Completion], bool]
) -> str | None:
    if completion.finish is not FinishReason.STOP or not all(action.stopped for action in completion.actions):
        return "not ended by itself"
    if longest_turn > max_new_tokens:
        return "beyond the task's limit in our tokens"
    return None if is_canonical(completion) else "not in the task's own form"


def _in_own_tokens(
    completion: Completion,
    observations: Sequence[str],
    tokens: TokenTable,
    *,
    asked: Prompt | None,
    same_tokenizer: bool,
    as_text: bool,
) -> _OwnTokens | None:
    """Returns the completion as the own tokenizer cuts it, also where the generator has the same one: the sampled
    tokens may be others that stand for the same text. Of a conversation each action is cut and aligned for itself, with
    what was observed after it, but for the last. None where the own tokenizer cannot write it.
    """
    ids: list[int] = []
    alignments: list[Alignment | None] = []
    observed: list[tuple[int, tuple[int, ...]]] = []
    anew: list[int] = []
    said: list[str] = []
    longest = 0
    for place, turn in enumerate(completion.turns()):
        own = tokens.tokenize_completion(turn.text)
        if own is None:
            return None
        if place > 0 and ids:
            assert asked is not None
            heard, written_again = tokens.heard_ids(asked.text, asked.tools, said, after=ids[-1])
            observed.append((len(ids), heard))
            anew += [len(ids)] if written_again else []
        end = turn.finish is FinishReason.STOP
        eos_id = int(turn.token_ids[-1]) if end and same_tokenizer else tokens.eos_id
        ids += [*own[0], *([eos_id] if end else [])]
        own_bytes = np.array([*own[1], *([0] if end else [])], dtype=np.int64)
        longest = max(longest, len(own_bytes))
        if as_text:
            alignments.append(text_alignment(len(own_bytes)) if len(own_bytes) else None)
        else:
            alignments.append(align(own_bytes, turn.token_bytes, turn.logps, end_of_sequence=end))
        said += [turn.text.decode("utf-8", "replace"), *observations[place : place + 1]]
    return _OwnTokens(np.array(ids, dtype=np.int64), joined(alignments), tuple(observed), tuple(anew), longest)
