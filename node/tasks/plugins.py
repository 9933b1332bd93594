"""Rewards and tasks from installed packages, by entry point.

``starling.rewards`` names reward functions with TRL's signature, ``f(prompts, completions, **columns) -> list[float]``:
equally long lists of text, and every column of the data set as a list beside them. ``starling.tasks`` names functions
without arguments that return a ``Task`` of the same name. A plug-in is imported only when the configuration names it.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Protocol, cast

from node.tasks.task import Task
from protocol.errors import ConfigurationError

REWARDS_GROUP: Final = "starling.rewards"
TASKS_GROUP: Final = "starling.tasks"


class RewardFunction(Protocol):
    """TRL's signature."""

    def __call__(self, prompts: Sequence[str], completions: Sequence[str], **columns: Sequence[Any]) -> Sequence[float]:
        """One reward a completion."""


def task_names() -> list[str]:
    return sorted(entry_points(group=TASKS_GROUP).names)


def reward_names() -> list[str]:
    return sorted(entry_points(group=REWARDS_GROUP).names)


def load_reward(name: str) -> RewardFunction:
    """Raises ConfigurationError when no installed package offers it, or when it cannot be imported or called."""
    function = _load(REWARDS_GROUP, name)
    if not callable(function):
        raise ConfigurationError(f"reward plug-in {name!r} is a {type(function).__name__}, wanted a function")
    return cast(RewardFunction, function)


def load_task(name: str) -> Task:
    """Raises ConfigurationError when no installed package offers it, or when it makes no task of this name."""
    factory = _load(TASKS_GROUP, name)
    if not callable(factory):
        raise ConfigurationError(f"task plug-in {name!r} is a {type(factory).__name__}, wanted a function")
    try:
        task = factory()
    except Exception as error:  # foreign code: anything may come out of it
        raise ConfigurationError(f"task plug-in {name!r} failed: {type(error).__name__}: {error}") from error
    if getattr(task, "name", None) != name:
        raise ConfigurationError(f"task plug-in {name!r} made a task called {getattr(task, 'name', None)!r}")
    return cast(Task, task)


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
    except Exception as error:  # importing foreign code: anything may come out of it
        raise ConfigurationError(f"plug-in {name!r} ({entry.value}) failed: {type(error).__name__}: {error}") from error
