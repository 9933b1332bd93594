"""Own rollouts: what the scorer takes of them, which are worth sharing, and the group that others get."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from node.engines.engine import Sample
from node.environments.conversation import Played
from node.policy.tokens import TokenTable
from node.tasks.scorer import Scores
from node.tasks.task import Prompt
from protocol import limits
from protocol.conversations import Action
from protocol.messages import PromptRef
from protocol.rollouts import Completion, Group


class RewardScorer(Protocol):
    """What is used of ``node.tasks.scorer.Scorer``, by two threads at once where generation runs ahead."""

    @abstractmethod
    def score(self, items: Sequence[tuple[PromptRef, Sequence[str]]]) -> list[Scores]: ...

    def submit(self, ref: PromptRef, texts: Sequence[str]) -> list[Future[Scores]]:
        """Begins to score completions of one prompt. A scorer in this process has done so when it returns."""
        futures = [Future[Scores]() for _ in texts]
        for future, scores in zip(futures, self.score([(ref, [text]) for text in texts]), strict=True):
            future.set_result(scores)
        return futures


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One prompt with its G samples by our policy."""

    prompt: Prompt
    prompt_ids: tuple[int, ...]
    samples: tuple[Sample, ...]
    texts: tuple[bytes, ...]  # of the samples, end-of-sequence excluded; of conversations as people read them
    conversed: Scores | None = None  # of conversations, which are scored while they are held; otherwise not known yet

    @property
    def tokens(self) -> int:
        return sum(len(sample.token_ids) for sample in self.samples)

    @property
    def oldest_version(self) -> int:
        """The version that sampled the oldest of its tokens."""
        return min(sample.oldest_version for sample in self.samples)


def rollout_of(prompt: Prompt, prompt_ids: Sequence[int], samples: Sequence[Sample], tokens: TokenTable) -> Rollout:
    """Returns the samples of one prompt with their texts."""
    texts = tuple(tokens.text_of(sample.token_ids.tolist()) for sample in samples)
    return Rollout(prompt, tuple(prompt_ids), tuple(samples), texts)


def scoring_item(ref: PromptRef, texts: Sequence[bytes]) -> tuple[PromptRef, list[str]]:
    """Returns what the scorer takes. Bytes that are not UTF-8 become the replacement character, on every node alike."""
    return ref, [text.decode("utf-8", "replace") for text in texts]


def scored(rollouts: Sequence[Rollout], scorer: RewardScorer) -> list[Scores]:
    """Returns the scores of ``rollouts``; conversations have theirs already."""
    answers = [rollout for rollout in rollouts if rollout.conversed is None]
    found = dict(zip(answers, scorer.score([scoring_item(r.prompt.ref, r.texts) for r in answers]), strict=True))
    return [rollout.conversed or found[rollout] for rollout in rollouts]


def can_be_shared(rollout: Rollout, tokens: TokenTable) -> bool:
    """Returns whether the group is within the protocol's limits, every token is one of the tokenizer's, and of
    conversations it is known what followed each action.

    A model's logits are often wider than its tokenizer. What lies beyond stands for nothing and is practically never
    sampled by a trained model, but another node's model with the same tokenizer may be narrower and has no such token.
    """
    if rollout.conversed is not None:
        actions = sum(len(played.digests) - 1 for played in rollout.conversed.played if played is not None)
        longest = max(len(sample.token_ids) for sample in rollout.samples)
        if actions > limits.ACTIONS_PER_GROUP or longest > limits.COMPLETION_TOKENS or any(rollout.conversed.faults):
            return False
    return rollout.tokens <= limits.GROUP_TOKENS and all(tokens.knows(s.token_ids) for s in rollout.samples)


def group_of(rollout: Rollout, rewards: Sequence[float], tokens: TokenTable, *, family: bytes) -> Group:
    """Returns the rollout as others get it, under the oldest version that sampled any of its tokens."""
    played = rollout.conversed.played if rollout.conversed is not None else (None,) * len(rollout.samples)
    completions = tuple(
        Completion(
            text=text if each is None else tokens.text_of(sample.token_ids.tolist()),
            token_ids=sample.token_ids,
            token_bytes=np.array(tokens.byte_lengths(sample.token_ids.tolist()), dtype=np.int64),
            logps=np.minimum(sample.logps, 0.0, dtype=np.float32),
            finish=sample.finish,
            reward=reward,
            actions=() if each is None else _actions(sample, each, tokens),
        )
        for sample, text, reward, each in zip(rollout.samples, rollout.texts, rewards, played, strict=True)
    )
    beginning = next((each.digests[0] for each in played if each is not None), b"")
    of_policy = family, tokens.fingerprint, rollout.oldest_version
    return Group(rollout.prompt.ref, *of_policy, completions, beginning)


def _actions(sample: Sample, played: Played, tokens: TokenTable) -> tuple[Action, ...]:
    ends = [*(place for place, _ in sample.observed), len(sample.token_ids)]
    return tuple(
        Action(end - begin, int(sample.token_ids[end - 1]) in tokens.eos_ids, digest)
        for begin, end, digest in zip([0, *ends[:-1]], ends, played.digests[1:], strict=True)
    )


def worth_sharing(rewards_of_groups: Sequence[Sequence[float]], tasks: Sequence[str], limit: int) -> list[int]:
    """Returns the indices of at most ``limit`` groups that may help others: those with any reward at all.

    A group that is all right helps a node without any success on that task; one that is all wrong helps nobody. Tasks
    take turns, each with its best group first, so that the limit does not leave only the easiest task.
    """
    order: list[tuple[int, float, int]] = []
    rank_in_task: dict[str, int] = {}
    means = [sum(rewards) / len(rewards) for rewards in rewards_of_groups]
    for index in sorted(range(len(means)), key=lambda i: -means[i]):
        if max(rewards_of_groups[index]) > 0:
            rank = rank_in_task.get(tasks[index], 0)
            rank_in_task[tasks[index]] = rank + 1
            order.append((rank, -means[index], index))
    return [index for _, _, index in sorted(order)[:limit]]
