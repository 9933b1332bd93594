"""Loads rewards and tasks of installed packages by their entry points. Plug-ins import ``starling.plugins``.

Group ``starling.rewards``: reward functions. Group ``starling.tasks``: functions without arguments that return a
``Task`` or an ``Environment`` with the entry point's name. A plug-in is imported only when the configuration names it.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Protocol, cast

from node.environments.conversation import ConversationTask
from node.environments.environment import Environment
from node.tasks.task import Task
from protocol.errors import ConfigurationError

REWARDS_GROUP: Final = "starling.rewards"
TASKS_GROUP: Final = "starling.tasks"


class RewardFunction(Protocol):
    """TRL's signature: texts of equal number, and every other column of the data set as a list of the same length."""

    def __call__(self, prompts: Sequence[str], completions: Sequence[str], **columns: Sequence[Any]) -> Sequence[float]:
        """Returns one reward per completion, 0 to 1 as a rule."""


def task_names() -> list[str]:
    """Returns the names of all installed task plug-ins."""
    return sorted(entry_points(group=TASKS_GROUP).names)


def load_reward(name: str) -> RewardFunction:
    """Raises ConfigurationError if no installed package has it, or if it cannot be imported or called."""
    function = _load(REWARDS_GROUP, name)
    if not callable(function):
        raise ConfigurationError(f"reward plug-in {name!r} is a {type(function).__name__}, wanted a function")
    return cast(RewardFunction, function)


def load_task(name: str) -> Task:
    """Returns an environment as a task. Raises ConfigurationError if no installed package has it, or if it does not
    make a task or an environment of this name."""
    factory = _load(TASKS_GROUP, name)
    if not callable(factory):
        raise ConfigurationError(f"task plug-in {name!r} is a {type(factory).__name__}, wanted a function")
    try:
        task = factory()
    except Exception as error:  # a plug-in may raise anything
        raise ConfigurationError(f"task plug-in {name!r} failed: {type(error).__name__}: {error}") from error
    if getattr(task, "name", None) != name:
        raise ConfigurationError(f"task plug-in {name!r} made a task called {getattr(task, 'name', None)!r}")
    return ConversationTask(cast(Environment, task)) if hasattr(task, "begin") else cast(Task, task)


def _load(group: str, name: str) -> object:
    found = entry_points(group=group, name=name)
    if not found:
        known = sorted(entry_points(group=group).names)
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        hint = f"the nearest is {nearest[0]!r}" if nearest else f"no installed package has entry points in {group!r}"
        raise ConfigurationError(f"there is no plug-in {name!r}: {hint}")
    entry: EntryPoint = next(iter(found))
    try:
        return entry.load()
    except Exception as error:  # a plug-in's import may raise anything
        raise ConfigurationError(f"plug-in {name!r} ({entry.value}) failed: {type(error).__name__}: {error}") from error
