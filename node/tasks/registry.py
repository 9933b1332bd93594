"""The tasks of this node: those of the default swarm, configured plug-ins, and JSONL data sets."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from node.configuration import TasksSection
from node.tasks.default_swarm import DEFAULT_TASKS
from node.tasks.jsonl import JsonlTask
from node.tasks.plugins import load_task, task_names
from node.tasks.task import Task
from protocol.errors import ConfigurationError

ManifestTask = tuple[str, int, bytes]  # name, version, configuration hash


def load_tasks(section: TasksSection) -> dict[str, Task]:
    """Returns the tasks of ``section`` by name. Imports no generator yet, and no plug-in that is not named.

    Raises ConfigurationError for an unknown name (with the nearest known one), for two tasks of one name, and for a
    data set or plug-in that cannot be loaded.
    """
    defaults: dict[str, Task] = {task.name: task for task in DEFAULT_TASKS}
    chosen: list[Task] = [_named(name, defaults) for name in section.names] or list(defaults.values())
    chosen += [
        JsonlTask.load(path, reward=section.jsonl_reward, max_new_tokens=section.jsonl_max_new_tokens)
        for path in section.jsonl
    ]
    tasks: dict[str, Task] = {}
    for task in chosen:
        if task.name in tasks:
            raise ConfigurationError(f"two tasks are called {task.name!r}: name it once, or rename the data set")
        tasks[task.name] = task
    return tasks


def _named(name: str, defaults: dict[str, Task]) -> Task:
    if name in defaults:
        return defaults[name]
    plugins = task_names()
    if name in plugins:
        return load_task(name)
    known = [*defaults, *plugins]
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    raise ConfigurationError(
        f"tasks.names: there is no task {name!r}; the nearest is {nearest[0]!r}, and there are {', '.join(known)}"
    )


def manifest_tasks(tasks: Iterable[Task]) -> tuple[ManifestTask, ...]:
    """Returns the entries of a swarm's manifest for these tasks, sorted by name."""
    return tuple(sorted((task.name, task.version, task.config_hash) for task in tasks))


def default_manifest_tasks() -> tuple[ManifestTask, ...]:
    """Returns the default swarm's entries of its manifest. Imports neither reasoning-gym nor torch."""
    return manifest_tasks(DEFAULT_TASKS)
