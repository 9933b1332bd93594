"""Evaluates a policy on each task, on prompts that are the same for every policy and every evaluation.

    greedy[task]  = mean reward of one completion a prompt at temperature 0
    sampled[task] = mean reward of SAMPLES completions a prompt at temperature 1

The prompts are the first of each task's test set (``node.tasks.split``): nobody trains on their questions, and they
choose no checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from node.configuration import DEFAULT_ROWS, Config, chosen
from node.engines.engine import Engine, GenerationRequest, Sampling
from node.engines.torch import TorchEngine
from node.environments.conversation import ConversationTask
from node.evaluation.evaluation_result import Evaluation
from node.evaluation.restored import find_checkpoint, load_untrained, restore
from node.home import Home
from node.learner.generation.conversations import Conversing
from node.learner.generation.own_rollouts import RewardScorer, rollout_of, scored
from node.learner.objective.forward import Network
from node.policy.tokens import TokenTable
from node.tasks.registry import load_tasks
from node.tasks.scorer import Scorer, Scores
from node.tasks.split import Part, held_out_prompts
from node.tasks.task import Prompt, Task
from protocol.errors import ConfigurationError

SAMPLES = 4


def evaluate_policy(
    home: Home,
    config: Config,
    checkpoint: Path | None,
    *,
    prompts: int,
    seed: int,
    on_progress: Callable[[int, int], None] = lambda answers, in_all: None,
) -> Evaluation:
    """Evaluates ``checkpoint``, by default the newest complete one in ``home``; if none, the original model.

    It only reads, so the node may run meanwhile. Raises ``ConfigurationError`` for a checkpoint of another family of
    policies, ``StorageError`` for a given checkpoint that is damaged. Calls ``on_progress`` with the answers measured
    and their number in all, first with 0 once everything is loaded, then after each task.
    """
    tasks = load_tasks(config.tasks)
    asked = held_out_prompts(tasks, Part.TEST, prompts)
    if not asked:
        raise ConfigurationError(
            "there is nothing to measure on: one question in sixteen is kept for it, chosen by its text, and the data "
            "set has too few rows to have one. Add rows, or name a task with --set tasks.names=…"
        )
    answers, in_all = 0, sum(map(len, asked.values())) * (1 + SAMPLES)

    def on_answers(more: int) -> None:
        nonlocal answers
        answers += more
        on_progress(answers, in_all)

    with Scorer(config.tasks) as scorer:  # its workers start while the policy loads
        found = find_checkpoint(home, checkpoint)
        policy = load_untrained(config.policy, found)
        if found is not None:
            restore(policy, found)
        engine = TorchEngine(policy, rows=chosen(config.engine.rows, DEFAULT_ROWS), seed=seed)
        settings = {"seed": seed, "context": Network.of(policy.model).context}
        measured = partial(mean_rewards, policy.tokens, engine, scorer, tasks, asked, on_answers=on_answers, **settings)
        on_answers(0)
        return Evaluation(
            model=config.policy.model,
            round=found.snapshot.round if found else 0,
            checkpoint=str(found.path) if found else None,
            prompts=max(map(len, asked.values())),
            samples=SAMPLES,
            seed=seed,
            greedy=measured(samples=1, temperature=0.0),
            sampled=measured(samples=SAMPLES, temperature=1.0),
        )


def mean_rewards(
    tokens: TokenTable,
    engine: Engine,
    scorer: RewardScorer,
    tasks: Mapping[str, Task],
    prompts: Mapping[str, Sequence[Prompt]],
    *,
    samples: int,
    temperature: float,
    seed: int,
    context: int,
    on_answers: Callable[[int], None] = lambda answers: None,
) -> dict[str, float]:
    """Returns the mean reward by task over ``samples`` completions of each of the task's ``prompts``. Calls
    ``on_answers`` with the number of those of each task, once it is done.

    A prompt that fills the model's ``context`` cannot be answered: its rewards are 0.
    """
    means: dict[str, float] = {}
    for name, of_task in prompts.items():
        groups = answered(
            tokens, engine, scorer, tasks[name], of_task,
            samples=samples, temperature=temperature, seed=seed, context=context,
        )  # fmt: skip
        means[name] = sum(sum(group.scores.rewards) for group in groups) / (len(of_task) * samples)
        on_answers(len(of_task) * samples)
    return means


@dataclass(frozen=True, slots=True)
class AnsweredPrompt:
    """A prompt, the texts of its completions, and what they earned."""

    prompt: Prompt
    texts: tuple[str, ...]
    tokens: int  # sampled
    scores: Scores


def answered(
    tokens: TokenTable,
    engine: Engine,
    scorer: RewardScorer,
    task: Task,
    prompts: Sequence[Prompt],
    *,
    samples: int,
    temperature: float,
    seed: int,
    context: int,
) -> list[AnsweredPrompt]:
    """Returns ``samples`` judged completions of each of ``prompts``; those that fill the ``context`` are left out."""
    asked = [(prompt, tokens.prompt_ids(prompt.text, prompt.tools)) for prompt in prompts]
    answerable = [(prompt, ids) for prompt, ids in asked if len(ids) < context]
    whole = context if isinstance(task, ConversationTask) else None
    requests = [
        GenerationRequest(ids, samples, task.max_new_tokens, conversation_tokens=whole) for _, ids in answerable
    ]
    turns = Conversing([prompt for prompt, _ in answerable], tokens, scorer)
    groups = engine.generate(requests, Sampling(temperature, seed), turns)
    rollouts = [
        rollout_of(prompt, ids, group, tokens) if whole is None else turns.rollout(prompt, ids, group)
        for (prompt, ids), group in zip(answerable, groups, strict=True)
    ]
    return [
        AnsweredPrompt(each.prompt, tuple(text.decode("utf-8", "replace") for text in each.texts), each.tokens, scores)
        for each, scores in zip(rollouts, scored(rollouts, scorer), strict=True)
    ]
