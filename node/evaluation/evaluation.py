"""Evaluates a policy on each task, on prompts that are the same for every policy and every evaluation.

    greedy[task]  = mean reward of one completion a prompt at temperature 0
    sampled[task] = mean reward of SAMPLES completions a prompt at temperature 1

Prompt seeds are 0 to ``prompts`` - 1: the built-in models were measured on these, and training, which draws its seeds
from billions, practically never uses them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from node.checkpoints import checkpoints
from node.checkpoints.checkpoint_files import rounds
from node.configuration import DEFAULT_ROWS, HELD_OUT_PROMPTS, Config, chosen
from node.engines.engine import Engine, GenerationRequest, Sample, Sampling
from node.engines.torch import TorchEngine
from node.evaluation.evaluation_result import Evaluation
from node.fit.planning import as_trained, trained_by
from node.home import Home
from node.learner.generation.generation import RewardScorer
from node.learner.objective.forward import Network
from node.policy.policy import Policy
from node.policy.tokens import TokenTable
from node.tasks.registry import load_tasks
from node.tasks.scorer import Scorer
from node.tasks.task import Task
from protocol.errors import ConfigurationError, StorageError

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
    answers, in_all = 0, len(tasks) * prompts * (1 + SAMPLES)

    def on_answers(more: int) -> None:
        nonlocal answers
        answers += more
        on_progress(answers, in_all)

    with Scorer(config.tasks) as scorer:  # its workers start while the policy loads
        found = _newest(home) if checkpoint is None else (checkpoint, checkpoints.read(checkpoint))
        section = config.policy if found is None else as_trained(config.policy, trained_by(found[1].config))
        policy = Policy.load(section)
        if found is not None:
            _restore(policy, *found)
        engine = TorchEngine(policy, rows=chosen(config.engine.rows, DEFAULT_ROWS), seed=seed)
        settings = {"prompts": prompts, "seed": seed, "context": Network.of(policy.model).context}
        measured = partial(mean_rewards, policy.tokens, engine, scorer, tasks, on_answers=on_answers, **settings)
        on_answers(0)
        return Evaluation(
            model=config.policy.model,
            round=found[1].round if found else 0,
            checkpoint=str(found[0]) if found else None,
            prompts=prompts,
            samples=SAMPLES,
            seed=seed,
            greedy=measured(samples=1, temperature=0.0),
            sampled=measured(samples=SAMPLES, temperature=1.0),
        )


def _newest(home: Home) -> tuple[Path, checkpoints.Snapshot] | None:
    for path in reversed(rounds(home.checkpoints)):
        with contextlib.suppress(StorageError):  # damaged, or deleted by the node meanwhile: tries the one before
            return path, checkpoints.read(path)
    return None


def _restore(policy: Policy, path: Path, snapshot: checkpoints.Snapshot) -> None:
    if snapshot.family != policy.family:
        raise ConfigurationError(
            f"{path} is a checkpoint of another family of policies ({snapshot.family.hex()}) than {policy.label} "
            f"({policy.family.hex()}): name the model that was trained with --model or policy.model"
        )
    with torch.no_grad():
        for name, parameter in policy.trainable().items():
            parameter.copy_(snapshot.tensors[f"weights.{name}"])


def mean_rewards(
    tokens: TokenTable,
    engine: Engine,
    scorer: RewardScorer,
    tasks: Mapping[str, Task],
    *,
    prompts: int,
    samples: int,
    temperature: float,
    seed: int,
    context: int,
    first_prompt: int = 0,
    on_answers: Callable[[int], None] = lambda answers: None,
) -> dict[str, float]:
    """Returns the mean reward by task over ``samples`` completions of each of ``prompts`` prompts of each task, the
    first with seed ``first_prompt``. Calls ``on_answers`` with the number of those of each task, once it is done.

    A prompt that fills the model's ``context`` cannot be answered: its rewards are 0.
    """
    if not 1 <= prompts <= HELD_OUT_PROMPTS:
        raise ConfigurationError(
            f"--prompts {prompts} is outside 1 to {HELD_OUT_PROMPTS}, the prompts kept for evaluation"
        )
    means: dict[str, float] = {}
    for name, task in tasks.items():
        refs = [task.ref(seed) for seed in range(first_prompt, first_prompt + prompts)]
        asked = [(ref, tokens.prompt_ids(task.prompt(ref).text)) for ref in refs]
        answerable = [(ref, ids) for ref, ids in asked if len(ids) < context]
        requests = [GenerationRequest(ids, samples, task.max_new_tokens) for _, ids in answerable]
        groups = engine.generate(requests, Sampling(temperature, seed))
        answered = zip(answerable, groups, strict=True)
        scores = scorer.score([(ref, _texts(tokens, group)) for (ref, _), group in answered])
        means[name] = sum(sum(of_group.rewards) for of_group in scores) / (prompts * samples)
        on_answers(prompts * samples)
    return means


def _texts(tokens: TokenTable, group: Sequence[Sample]) -> list[str]:
    return [tokens.text_of(sample.token_ids.tolist()).decode("utf-8", "replace") for sample in group]
