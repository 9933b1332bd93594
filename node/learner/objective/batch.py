"""What the optimizer step is taken on: groups in the learner's own tokens, with advantages and behaviour spans."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from node.configuration import ObjectiveSection
from node.engines.engine import Segment
from node.learner.generation.own_rollouts import Rollout
from node.learner.objective.advantages import AdvantageRule, learner_relative_advantages
from node.learner.objective.alignment import Alignment, align, text_alignment
from node.learner.objective.behaviour_claims import usable_logps
from node.policy.tokens import TokenTable
from protocol.rollouts import Completion, FinishReason, Group

SELF = "self"  # the peer name of own completions

Baseline = Literal["fixed", "prompt", "min_variance"]


@dataclass(frozen=True, slots=True, eq=False)
class TrainingCompletion:
    """One completion that has a gradient."""

    token_ids: NDArray[np.int64]  # (T,) in the learner's tokenizer, T >= 1
    alignment: Alignment  # of these T tokens with the generator's
    advantage: float
    peer: str  # who generated it; ``SELF`` for own
    count: int = 1  # how many of the group's completions are exactly this one
    reward: float = 0.0
    success: float = 0.0  # V_θ, the learner's expected reward on this prompt
    as_text: bool = False  # without a behaviour policy: its ratio counts as 1
    segments: tuple[Segment, ...] = ()  # of own: which versions sampled it

    @property
    def foreign(self) -> bool:
        return self.peer != SELF


@dataclass(frozen=True, slots=True, eq=False)
class TrainingGroup:
    """One prompt with those of its completions that have a gradient.

    A completion with A = 0 has none and costs no forward pass, yet it and its tokens count in the normalisation. With a
    KL term own ones have a gradient whatever their advantage. Equal completions, which short right answers often are,
    are computed once and counted as often as they occur.
    """

    prompt_ids: tuple[int, ...]  # (P,) P >= 1
    completions: tuple[TrainingCompletion, ...]
    tokens: int  # completion tokens of the whole group, those with A = 0 included
    size: int  # completions of the whole group, those with A = 0 included
    baseline: Baseline = "fixed"  # else advantages are yet to be had, from the policy itself
    unusable: int = 0  # foreign completions whose log-probabilities cannot be, dropped or taken as text

    @property
    def informative(self) -> bool:
        """Whether any advantage is, or may yet turn out to be, other than zero."""
        return bool(self.completions) and (self.baseline != "fixed" or any(c.advantage != 0 for c in self.completions))


def own_training_group(
    rollout: Rollout, rewards: Sequence[float], section: ObjectiveSection, rule: AdvantageRule
) -> TrainingGroup:
    """Own groups keep their group advantage; the behaviour is what the engine recorded while sampling."""
    advantages = rule(np.array(rewards, dtype=np.float32))
    informative = bool((advantages != 0).any())
    pending = informative and rule.method == "min_variance"
    completions = tuple(
        TrainingCompletion(
            sample.token_ids,
            Alignment(np.arange(len(sample.token_ids)), sample.logps, 0),
            float(advantage),
            SELF,
            reward=float(reward),
            segments=sample.segments,
        )
        for sample, reward, advantage in zip(rollout.samples, rewards, advantages, strict=True)
        if (advantage != 0 or pending or section.kl_weight > 0) and len(sample.token_ids) > 0
    )
    baseline: Baseline = "min_variance" if pending else "fixed"
    return TrainingGroup(rollout.prompt_ids, merged(completions), rollout.tokens, len(rollout.samples), baseline)


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
) -> TrainingGroup:
    """A checked foreign group in our own tokens; ``success`` is V_θ of its class, ``context`` our model's positions.

    A completion that our tokenizer cannot write, or that does not fit the context, is left out; its reward counted in
    the group's mean all the same. So is one whose log-probabilities cannot be, unless ``section.unusable_logps`` takes
    it as text.
    """
    scores = np.array(rewards, dtype=np.float32)
    relative = section.foreign_advantage == "learner"
    advantages = learner_relative_advantages(scores, success) if relative else rule(scores)
    baseline = _baseline(section, scores, advantages)
    usable = usable_logps(group)
    foreign_tokens = group.tokenizer != tokens.fingerprint
    completions: list[TrainingCompletion] = []
    total = size = 0
    for completion, fine, each, reward in zip(group.completions, usable, advantages, scores, strict=True):
        if not fine and section.unusable_logps == "drop":
            continue
        own = _in_own_tokens(completion, tokens, same_tokenizer=not foreign_tokens)
        if own is None or len(prompt_ids) + len(own[0]) > context:
            continue
        total, size = total + len(own[0]), size + 1
        if each == 0 and baseline == "fixed":
            continue
        as_text = not fine or (foreign_tokens and section.correction == "f_tis")
        alignment = _alignment(completion, own[1], as_text=as_text)
        if alignment is not None:
            completions.append(
                TrainingCompletion(
                    own[0], alignment, float(each), peer, reward=float(reward), success=success, as_text=as_text
                )
            )
    unusable = len(usable) - sum(usable)
    return TrainingGroup(prompt_ids, merged(completions), total, size, baseline, unusable)


def _baseline(section: ObjectiveSection, rewards: NDArray[np.float32], advantages: NDArray[np.float32]) -> Baseline:
    """What the advantages of a foreign group wait for. A group without any reward has nothing to wait for."""
    if section.foreign_advantage == "learner":
        return "prompt" if section.foreign_value == "prompt" and bool((rewards > 0).any()) else "fixed"
    return "min_variance" if section.advantage == "min_variance" and bool((advantages != 0).any()) else "fixed"


def _alignment(completion: Completion, own_bytes: NDArray[np.int64], *, as_text: bool) -> Alignment | None:
    if as_text:
        return text_alignment(len(own_bytes)) if len(own_bytes) else None
    stopped = completion.finish is FinishReason.STOP
    return align(own_bytes, completion.token_bytes, completion.logps, end_of_sequence=stopped)


def merged(completions: Iterable[TrainingCompletion]) -> tuple[TrainingCompletion, ...]:
    """Equal completions by the same weights as one: their behaviour log-probabilities are equal too, up to rounding."""
    found: dict[tuple[Hashable, ...], TrainingCompletion] = {}
    for each in completions:
        shape = each.alignment.span_of_token.tobytes()
        key = each.token_ids.tobytes(), shape, each.advantage, each.reward, each.as_text, each.segments
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
