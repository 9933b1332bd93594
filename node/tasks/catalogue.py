"""What there is to train on, for people: every task with an example, a sample of one, and how an answer is judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from node.configuration import TasksSection
from node.environments.conversation import ConversationTask, Exchange
from node.tasks.answers import final_answer
from node.tasks.jsonl import JsonlTask
from node.tasks.parameters import BARE, PREFIX, TOKENS
from node.tasks.question_counts import question_count
from node.tasks.reasoning import ReasoningTask
from node.tasks.registry import BUILT_IN_TASKS, TASK_SETS, load_tasks, named_tasks
from node.tasks.split import Part, part_of
from node.tasks.task import Task
from node.tasks.worded import Scoring, WordedTask
from node.tasks.worker import score_one
from protocol.errors import ConfigurationError
from protocol.messages import PromptRef

EXAMPLE_SEED = 0


class TaskSummary(msgspec.Struct, frozen=True):
    """One line of ``starling tasks``, and with ``--json`` one object."""

    name: str
    version: int
    config_hash: str
    max_new_tokens: int
    scoring: str
    sets: tuple[str, ...]
    configured: bool  # a node with this configuration trains on it
    example: str
    questions: int | None  # with different texts, about; None: more than ``MANY_QUESTIONS``


class TaskSample(msgspec.Struct, frozen=True):
    """One question of a task."""

    task: str
    seed: int
    question: str
    right_answer: str | None
    max_new_tokens: int
    scoring: str
    parameters: dict[str, Any] | None  # of a generator with the owner's parameters: all that it has
    part: Part  # whether the question teaches or measures
    questions: int | None  # of the task, as in ``TaskSummary``
    conversation: tuple[Exchange, ...] | None = None  # of an environment: one that goes well, none where it shows none


class JudgedAnswer(msgspec.Struct, frozen=True):
    """What a completion earns, and the part of it that was judged."""

    reward: float
    extracted: str | None  # None: no answer was found in it
    found_by: str
    fault: str | None  # why there is no reward of its own


def summaries(section: TasksSection, which: str | None = None) -> list[TaskSummary]:
    """Returns the tasks of ``section`` and then the other built-in ones; only those of the set ``which``, if given.

    Plug-ins that ``section`` does not name are left out, since they are imported only where they are named. Raises
    ``ConfigurationError`` as ``load_tasks`` does.
    """
    configured = load_tasks(section)
    every: Mapping[str, Task] = {**configured, **BUILT_IN_TASKS}
    chosen = every.values() if which is None else TASK_SETS[which]
    return [_summary(task, configured=task.name in configured) for task in chosen]


def _summary(task: Task, *, configured: bool) -> TaskSummary:
    return TaskSummary(
        name=task.name,
        version=task.version,
        config_hash=task.config_hash.hex(),
        max_new_tokens=task.max_new_tokens,
        scoring=scoring_of(task),
        sets=tuple(name for name, tasks in TASK_SETS.items() if task in tasks),
        configured=configured,
        example=task.prompt(task.ref(EXAMPLE_SEED)).text,
        questions=question_count(task),
    )


def find_task(section: TasksSection, name: str) -> Task:
    """Returns the task of ``section``, or else the built-in one, generator or plug-in, with this name.

    Raises ``ConfigurationError`` for an unknown name, with the nearest known one.
    """
    configured = load_tasks(section)
    return configured[name] if name in configured else named_tasks(name)[0]


def sample(task: Task, seed: int) -> TaskSample:
    ref = task.ref(seed)
    prompt = task.prompt(ref)
    parameters = None
    if isinstance(task, WordedTask) and task.name.startswith(PREFIX):
        parameters = {**task.generator_config, TOKENS: task.max_new_tokens, BARE: task.bare}
    return TaskSample(
        task.name,
        ref.seed,
        prompt.text,
        prompt.answer,
        task.max_new_tokens,
        scoring_of(task),
        parameters,
        part_of(prompt),
        question_count(task),
        _conversation(task, ref),
    )


def _conversation(task: Task, ref: PromptRef) -> tuple[Exchange, ...] | None:
    return tuple(task.exchanges(ref, task.example(ref.seed) or ())) if isinstance(task, ConversationTask) else None


def find_conversation(section: TasksSection, name: str) -> ConversationTask:
    """Returns the environment with this name, as ``find_task`` does. Raises ``ConfigurationError`` also for a task with
    one answer."""
    task = find_task(section, name)
    if not isinstance(task, ConversationTask):
        raise ConfigurationError(
            f"task {name!r} has one answer a question: only a conversation is played or audited. starling tasks "
            "conversations lists them"
        )
    return task


def judge(task: Task, seed: int, completion: str) -> JudgedAnswer:
    """Returns what a completion of the question of ``seed`` earns. It is scored in this process: not for strangers'.

    Raises ``ConfigurationError`` for a reward's file that cannot be run.
    """
    if isinstance(task, JsonlTask):
        task.load_reward()
    verdict = score_one(task, task.prompt(task.ref(seed)), completion)
    extracted, found_by = _extracted(task, completion)
    fault = None if verdict.fault is None else f"{verdict.fault.value}: {verdict.detail}"
    return JudgedAnswer(verdict.reward, extracted, found_by, fault)


def _extracted(task: Task, completion: str) -> tuple[str | None, str]:
    if isinstance(task, WordedTask):
        return task.extracted(completion), "the whole text" if task.bare else "<answer>"
    if isinstance(task, JsonlTask) and task.reward_name == "final":
        found = final_answer(completion)
        return (None, "any mark") if found is None else (found.text, found.mark.value)
    return completion, "the whole text"


def scoring_of(task: Task) -> str:
    """Returns what decides whether an answer is right, in a few words."""
    match task:
        case WordedTask(scoring=Scoring.LIBRARY | Scoring.PROPOSITION) | ReasoningTask():
            return "reasoning-gym, audited"
        case WordedTask():
            return f"same {task.scoring.value}"
        case JsonlTask():
            return task.reward_name
        case ConversationTask():
            return f"{task.environment.max_turns} turns at most"
        case _:
            return "plug-in"
