"""What a round asks of the memory: how many completions, how long, and what is kept beside the weights."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from node.configuration import Config, chosen
from node.engines.backend_choice import EngineFacts, choose_backend
from node.engines.vllm_backend.environment import Installed
from node.engines.vllm_backend.processor import cache_bytes
from node.environments.conversation import most_observed_bytes, most_tokens
from node.fit.model_sizes import ModelSizes
from node.tasks.task import Task

SAMPLED_PROMPTS: Final = 32  # of each task, to see how long they are
SMALL_VOCABULARY: Final = 1024  # up to here a token is taken for one byte, above for two; most have four
BYTES_OF_A_TEMPLATE: Final = 64  # that a chat template adds to a prompt


class VllmMemory(Struct, frozen=True):
    """What configuration and environment give to vLLM."""

    cache_bytes: int  # for keys and values, on a processor
    card_bytes: int = 0  # of a card, for everything


class Workload(Struct, frozen=True, kw_only=True):
    """The longest round that the configuration allows."""

    prompt_tokens: int  # of the longest prompt, estimated
    answer_tokens: int  # that an answer may have
    own_groups: int  # of all that a round may generate at once
    foreign_groups: int
    completions: int  # of a group
    engine_copies: int = 0  # of the trained weights: the embedded engine's own, and those that wait for an engine
    engine_elsewhere: bool = False  # in a process of its own, which holds another copy of the model
    vllm: VllmMemory | None = None  # where that is vLLM
    has_donors: bool = False  # or has invited some: machines that generate for it
    devices: int = 1  # that hold the learner's model in shards; above 1 the engine is elsewhere, of GPUs on one more
    generates_ahead: bool = False  # while learning
    has_reference: bool = False  # a copy of the trained weights, for the KL term
    averages: bool = True  # weights with peers of the family
    publishes: bool = True  # weights for peers of the family
    checkpoints_kept: int = 2

    @property
    def groups(self) -> int:
        return self.own_groups + self.foreign_groups


def workload_of(
    config: Config,
    tasks: Iterable[Task],
    sizes: ModelSizes,
    *,
    card_bytes: int | None = None,
    vllm: Installed | None = None,
    has_donors: bool = False,
) -> Workload:
    """Returns the workload of ``config``. Prompts are drawn from the tasks to see how long they are. ``card_bytes``: of
    the GPU in all, where there is one; ``vllm``: what is installed of it."""
    learner, objective = config.learner, config.objective
    small = sizes.vocabulary < SMALL_VOCABULARY
    longest_bytes, answer = 1, 1
    for task in tasks:
        texts = (task.prompt(task.ref(seed)).text for seed in range(SAMPLED_PROMPTS))
        longest_bytes = max(longest_bytes, *(len(text.encode()) for text in texts))
        observed = most_observed_bytes(task)
        answer = max(answer, most_tokens(task) + (observed if small else (observed + 1) // 2))
    prompt = longest_bytes if small else (longest_bytes + BYTES_OF_A_TEMPLATE + 1) // 2
    prompt = min(prompt, max(1, sizes.context - 1))
    behind = objective.research.weights_behind
    runs_ahead = learner.max_staleness > 0
    waiting = 1 + behind if runs_ahead or behind else 0
    four_bit = chosen(config.policy.four_bit, False)  # where that is "auto", ``node.fit.vllm.vllm_of`` looks again
    facts = EngineFacts(vllm, card_bytes is not None, four_bit, sizes.parameters, in_shards=learner.devices > 1)
    backend = choose_backend(config.engine, facts).backend
    elsewhere = backend != "torch" or learner.devices > 1
    return Workload(
        prompt_tokens=prompt,
        answer_tokens=min(answer, max(1, sizes.context - prompt)),
        own_groups=max(1, round(learner.own_groups * (1 + learner.overprovision))) * max(1, learner.resample),
        foreign_groups=learner.most_foreign_groups,
        completions=learner.completions,
        engine_copies=waiting if elsewhere else waiting + (waiting > 0),
        engine_elsewhere=elsewhere,
        vllm=_vllm_memory(config, card_bytes) if backend == "vllm" else None,
        has_donors=has_donors and learner.devices == 1,  # a learner in shards has none
        devices=learner.devices,
        generates_ahead=runs_ahead,
        has_reference=objective.kl_weight > 0,
        averages=config.averaging.every_rounds > 0,
        publishes=config.checkpoint.publish_every_rounds > 0,
        checkpoints_kept=config.checkpoint.keep,
    )


def _vllm_memory(config: Config, card_bytes: int | None) -> VllmMemory:
    return VllmMemory(cache_bytes(os.environ), round(config.engine.memory_share * (card_bytes or 0)))
