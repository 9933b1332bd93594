"""Own rollouts: from an allocation to sampled completions, and from scored completions to the group that is shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from node.engines.engine import Engine, GenerationRequest, Sample, Sampling
from node.learner.allocator import Allocation
from node.tasks.task import Prompt, Task
from node.tokens import TokenTable
from protocol.errors import ConfigurationError
from protocol.messages import PromptRef
from protocol.rollouts import Completion, Group


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One prompt with its G samples by our policy, not scored yet."""

    prompt: Prompt
    prompt_ids: tuple[int, ...]
    samples: tuple[Sample, ...]
    texts: tuple[bytes, ...]  # of the samples, end-of-sequence excluded

    @property
    def tokens(self) -> int:
        return sum(len(sample.token_ids) for sample in self.samples)


def generate(
    allocations: Sequence[Allocation],
    tasks: Mapping[str, Task],
    tokens: TokenTable,
    engine: Engine,
    sampling: Sampling,
    *,
    context: int,
) -> list[Rollout]:
    """Samples every allocated prompt. One that leaves no position of the ``context`` for an answer is left out.

    Raises ``ConfigurationError`` when that is all of them.
    """
    prompts: list[tuple[Prompt, tuple[int, ...]]] = []
    requests: list[GenerationRequest] = []
    for allocation in allocations:
        task = tasks[allocation.task]
        prompt = task.prompt(task.ref(allocation.prompt_seed))
        prompt_ids = tuple(tokens.prompt_ids(prompt.text))
        room = min(task.max_new_tokens, context - len(prompt_ids))
        if room > 0:
            prompts.append((prompt, prompt_ids))
            requests.append(GenerationRequest(prompt_ids, allocation.completions, room))
    if not requests:
        raise ConfigurationError(
            f"none of {len(allocations)} prompts leaves room for an answer in the model's context of {context} tokens: "
            "choose shorter tasks, or a policy.model with a longer context"
        )
    generated = engine.generate(requests, sampling)
    return [
        Rollout(prompt, ids, tuple(samples), tuple(tokens.text_of(s.token_ids.tolist()) for s in samples))
        for (prompt, ids), samples in zip(prompts, generated, strict=True)
    ]


def scoring_item(ref: PromptRef, texts: Sequence[bytes]) -> tuple[PromptRef, list[str]]:
    """What the scorer takes. Bytes that are no UTF-8 become the replacement character, on every node alike."""
    return ref, [text.decode("utf-8", "replace") for text in texts]


def group_of(
    rollout: Rollout, rewards: Sequence[float], tokens: TokenTable, *, family: bytes, policy_version: int
) -> Group:
    """The rollout as others get it."""
    completions = tuple(
        Completion(
            text=text,
            token_ids=sample.token_ids,
            token_bytes=np.array(tokens.byte_lengths(sample.token_ids.tolist()), dtype=np.int64),
            logps=np.minimum(sample.logps, 0.0, dtype=np.float32),
            finish=sample.finish,
            reward=reward,
        )
        for sample, text, reward in zip(rollout.samples, rollout.texts, rewards, strict=True)
    )
    return Group(rollout.prompt.ref, family, tokens.fingerprint, policy_version, completions)


def worth_sharing(rewards_of_groups: Sequence[Sequence[float]], tasks: Sequence[str], limit: int) -> list[int]:
    """Indices of at most ``limit`` groups that may help others: those with any reward at all.

    A group that is all right helps whoever is at zero there; one that is all wrong helps nobody. Tasks take turns, each
    with its best group first, so that the limit does not leave only the easiest task.
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
