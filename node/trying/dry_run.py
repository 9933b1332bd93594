"""``starling up --dry-run``: a few groups of each task, sampled and judged as a round would, and nothing else.

Settings are planned, weights restored and answers judged by the code of a start; the embedded engine samples. Nothing
is learnt, written or sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from node.configuration import Config
from node.engines.torch import TorchEngine
from node.evaluation.evaluation import AnsweredPrompt, answered
from node.evaluation.restored import find_checkpoint, load_untrained, restore
from node.events import Event, Planned
from node.fit.fitted import fitted_with
from node.home import Home
from node.learner.allocation.allocator import allocate
from node.learner.assembly.planning import planned_config
from node.learner.generation.generation import check_prompt_room
from node.learner.memory.device_memory import total_memory_bytes
from node.learner.objective.forward import Network
from node.policy.device import choose_device
from node.printable import printable
from node.supervision.watching.learning_watch import why_equal
from node.tasks.registry import load_tasks
from node.tasks.scorer import Scorer
from node.tasks.split import training_prompt
from node.tasks.task import Prompt, Task
from node.trying.dry_run_result import DryRun, DryRunAnswer, DryRunGroup, DryRunTask

MOST_GROUPS: Final = 8  # of a task; the first one shows how many more are sampled in ...
PATIENCE_SECONDS: Final = 30.0


def dry_run(home: Home, config: Config, checkpoint: Path | None, on_step: Callable[[str], None]) -> DryRun:
    """Samples from ``checkpoint``, by default the newest in ``home``, or from the model before any training.

    It only reads, so a node may run in ``home`` meanwhile. Raises ``ConfigurationError`` as a learner's start does.
    """
    tasks, planned = load_tasks(config.tasks), list[Planned]()
    fitted = fitted_with(home.fitted, config.policy.model, total_memory_bytes(choose_device(config.policy.device)))
    config, settings, _ = planned_config(home, config, tasks.values(), partial(_keep_plan, planned), fitted)
    with Scorer(config.tasks) as scorer:  # its workers start while the policy loads
        on_step(f"loading {printable(config.policy.model)}")
        found = find_checkpoint(home, checkpoint)
        policy = load_untrained(config.policy, found)
        if found is not None:
            restore(policy, found)
        context = Network.of(policy.model).context
        check_prompt_room(tasks, policy.tokens, context)
        engine = TorchEngine(policy, rows=settings.rows, seed=config.seed, merge_adapters=settings.merge_adapters)
        ask = partial(
            answered, policy.tokens, engine, scorer, samples=config.learner.completions,
            temperature=config.engine.temperature, seed=config.seed, context=context,
        )  # fmt: skip
        sampled = _sampled(config, tasks, ask, on_step)
    seconds, answers = sum(task.timed_seconds for task in sampled), sum(task.timed_answers for task in sampled)
    silent = {task.task: task.reward for task in sampled if not task.teaching and task.groups}
    why, to_do = why_equal(silent) if silent else (None, None)
    return DryRun(
        model=policy.label,
        plan=planned[0].choice,
        round=found.snapshot.round if found is not None else 0,
        checkpoint=str(found.path) if found is not None else None,
        temperature=config.engine.temperature,
        completions=config.learner.completions,
        own_groups=config.learner.own_groups,
        tasks=sampled,
        groups=sum(len(task.groups) for task in sampled),
        teaching=sum(task.teaching for task in sampled),
        tokens_per_second=sum(task.timed_tokens for task in sampled) / seconds,
        round_seconds=seconds / max(1, answers) * config.learner.own_groups * config.learner.completions,
        teaches_nothing=why,
        to_do=to_do,
    )


def _keep_plan(planned: list[Planned], event: Event) -> None:
    if isinstance(event, Planned):
        planned.append(event)


def _sampled(
    config: Config,
    tasks: Mapping[str, Task],
    ask: Callable[[Task, Sequence[Prompt]], list[AnsweredPrompt]],
    on_step: Callable[[str], None],
) -> tuple[DryRunTask, ...]:
    """Returns what was sampled of each task: one group, then as many more as ``PATIENCE_SECONDS`` allow. What is timed
    is the latter, where there are any: the first also compiles and waits for the scorer."""
    prompts = {
        name: [
            training_prompt(task, each.prompt_seed)
            for each in allocate(0, f"dry run/{config.seed}", [name], groups=MOST_GROUPS, completions=1)
        ]
        for name, task in tasks.items()
    }

    def sample(name: str, first: int, until: int) -> tuple[list[AnsweredPrompt], float]:
        on_step(f"sampling answers to {printable(name)}")
        began = time.monotonic()
        return ask(tasks[name], prompts[name][first:until]), time.monotonic() - began

    begun = {name: sample(name, 0, 1) for name in tasks}
    more = min(MOST_GROUPS - 1, int(PATIENCE_SECONDS / sum(seconds for _, seconds in begun.values())))
    found = []
    for name, (first, first_seconds) in begun.items():
        further, seconds = sample(name, 1, 1 + more) if more else ([], 0.0)
        timed = (further, seconds) if further else (first, first_seconds)
        found.append(_of_task(name, [*first, *further], *timed))
    return tuple(found)


def _of_task(
    name: str, groups: Sequence[AnsweredPrompt], timed: Sequence[AnsweredPrompt], seconds: float
) -> DryRunTask:
    rewards = [reward for group in groups for reward in group.scores.rewards]
    return DryRunTask(
        task=name,
        groups=tuple(map(_of_group, groups)),
        teaching=sum(max(group.scores.rewards) > min(group.scores.rewards) for group in groups),
        reward=sum(rewards) / len(rewards) if rewards else 0.0,
        timed_answers=sum(len(group.texts) for group in timed),
        timed_tokens=sum(group.tokens for group in timed),
        timed_seconds=seconds,
    )


def _of_group(group: AnsweredPrompt) -> DryRunGroup:
    scores = group.scores
    answers = zip(group.texts, scores.rewards, scores.faults, strict=True)
    return DryRunGroup(
        question=group.prompt.text,
        right_answer=group.prompt.answer,
        answers=tuple(
            DryRunAnswer(text, reward, None if fault is None else f"{fault.reason}: {fault.detail}")
            for text, reward, fault in answers
        ),
    )
