"""Loads rewards and tasks of installed packages by their entry points, and tasks of the owner's own files. Both import
``starling.plugins``.

Group ``starling.rewards``: reward functions. Group ``starling.tasks``: a ``Task`` or an ``Environment``, or a class or
function without arguments that makes one, with the entry point's name. A plug-in is imported only when the
configuration names it.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Final, Protocol, cast

from node.environments.conversation import ConversationTask
from node.environments.environment import Environment
from node.tasks.own_file import OwnFile, place_of
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
    task = made_task(f"task plug-in {name!r}", _load(TASKS_GROUP, name))
    if task.name != name:
        raise ConfigurationError(f"task plug-in {name!r} made a task called {task.name!r}")
    return task


class TaskFile(OwnFile):
    """A task or an environment of the owner's own: ``tasks.names = ["FILE.py:TASK"]``."""

    KEY: ClassVar = "tasks.names"
    WANTED: ClassVar = "task"


def load_task_file(text: str) -> Task:
    """Returns the task that a file of the owner binds to a name: a task, an environment, or a class or function without
    arguments that makes one. The content of the file is part of an environment's configuration.

    Runs the file. Raises ConfigurationError for one that cannot be used, with the line where there is one.
    """
    file = TaskFile.read(text)
    return made_task(f"{TaskFile.KEY}: {file.label}", file.load(), file)


def made_task(what: str, factory: object, file: TaskFile | None = None) -> Task:
    """Returns what ``factory`` is or makes, as a task, once it has made its first prompt. Raises ConfigurationError."""
    try:
        made = factory() if isinstance(factory, type) or callable(factory) else factory
        wanted = Environment if hasattr(made, "begin") else Task
        missing = [each for each in vars(wanted) if not each.startswith("_") and not hasattr(made, each)]
        if missing:
            raise ConfigurationError(f"a {wanted.__name__.lower()} without {', '.join(missing)} (docs/environments.md)")
        task: Task = cast(Task, made)
        if wanted is Environment:
            task = ConversationTask(cast(Environment, made), None if file is None else file.digest)
        task.prompt(task.ref(0))
    except Exception as error:  # the owner's own code may raise anything
        place = place_of(error)
        said = str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"{what} failed: {said}" + (f" ({place})" if place else "")) from error
    return task


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
