"""The tasks of this node: built-in ones by their names or as sets, configured plug-ins, JSONL data sets, and generators
with the owner's parameters."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from node.configuration import TasksSection
from node.environments.adapters.textarena_games import PREFIX as GAMES
from node.environments.adapters.textarena_games import textarena_environment
from node.environments.built_in.all import CONVERSATIONS
from node.tasks.default_swarm import DEFAULT_TASKS
from node.tasks.jsonl import JsonlTask
from node.tasks.own_file import is_own_file
from node.tasks.parameters import PREFIX, generator_task
from node.tasks.plugins import load_task, load_task_file, made_task, task_names
from node.tasks.reasoning_sets import REASONING_TASKS, SAPO_TASKS
from node.tasks.task import Task
from protocol.errors import ConfigurationError

ManifestTask = tuple[str, int, bytes]  # name, version, configuration hash


TASK_SETS: Final[Mapping[str, Sequence[Task]]] = {
    "default": DEFAULT_TASKS,
    "sapo": SAPO_TASKS,
    "reasoning": REASONING_TASKS,
    "conversations": CONVERSATIONS,
}
_BUILT_IN: Final[Sequence[Task]] = (*DEFAULT_TASKS, *REASONING_TASKS, *CONVERSATIONS)
BUILT_IN_TASKS: Final[Mapping[str, Task]] = {task.name: task for task in _BUILT_IN}


def load_tasks(section: TasksSection) -> dict[str, Task]:
    """Returns the tasks of ``section`` by name. Imports no generator but those that have parameters, and no plug-in
    that is not named.

    A name is a task's or a set's (``TASK_SETS``). Without names they are the data sets and the generators with
    parameters alone, or the default swarm's tasks if there are none. Raises ConfigurationError for an unknown name
    (with the nearest known one), for two tasks of one name, and for a data set, generator or plug-in that cannot be
    loaded.
    """
    own = section.jsonl or section.reasoning_gym
    names = section.names or (() if own else ("default",))
    chosen = [task for name in names for task in named_tasks(name)]
    chosen += [
        JsonlTask.load(
            entry,
            reward=section.jsonl_reward,
            max_new_tokens=section.jsonl_max_new_tokens,
            instruction=section.jsonl_instruction,
        )
        for entry in section.jsonl
    ]
    chosen += [generator_task(generator, given) for generator, given in section.reasoning_gym.items()]
    tasks: dict[str, Task] = {}
    for task in chosen:
        if task.name in tasks:
            raise ConfigurationError(f"two tasks are called {task.name!r}: name it once, or rename the data set")
        tasks[task.name] = task
    return tasks


def named_tasks(name: str) -> Sequence[Task]:
    """Returns the task of this name, or the tasks of the set. Raises ConfigurationError for an unknown name.

    "reasoning_gym:GENERATOR" is a generator with the library's own parameters, "textarena:ID" a game, and
    "FILE.py:NAME" a task of the owner's own.
    """
    if name in TASK_SETS:
        return TASK_SETS[name]
    if name in BUILT_IN_TASKS:
        return [BUILT_IN_TASKS[name]]
    if name.startswith(PREFIX):
        return [generator_task(name.removeprefix(PREFIX), {})]
    if name.startswith(GAMES):
        return [made_task(name, textarena_environment(name.removeprefix(GAMES)))]
    if is_own_file(name):
        return [load_task_file(name)]
    plugins = task_names()
    if name in plugins:
        return [load_task(name)]
    known = [*TASK_SETS, *BUILT_IN_TASKS, *plugins]
    nearest = "".join(f"; did you mean {near!r}?" for near in difflib.get_close_matches(name, known, n=1))
    raise ConfigurationError(f"tasks.names: there is no task or set {name!r}{nearest} (starling tasks lists all)")


def manifest_tasks(tasks: Iterable[Task]) -> tuple[ManifestTask, ...]:
    """Returns the entries of a swarm's manifest for these tasks, sorted by name."""
    return tuple(sorted((task.name, task.version, task.config_hash) for task in tasks))


def default_manifest_tasks() -> tuple[ManifestTask, ...]:
    """Returns the default swarm's entries of its manifest. Imports neither reasoning-gym nor torch."""
    return manifest_tasks(DEFAULT_TASKS)
