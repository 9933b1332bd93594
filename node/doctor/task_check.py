"""Reads a configuration's data sets, rewards, generators and plug-ins in a process of its own,
``python -m node.doctor.task_check``.

Standard input: a ``TasksSection`` as JSON. Standard output: ``TaskFault``s as a JSON list, all that there are. Own
files may be large and plug-ins may import anything, so neither belongs into the process that keeps a node up.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from node.configuration import TasksSection
from node.tasks.matching import AUTO, BUILT_IN
from node.tasks.parameters import PREFIX, TABLE, generator_task
from node.tasks.plugins import load_reward, task_names
from node.tasks.registry import load_tasks, named_tasks
from node.tasks.reward_file import RewardFile, is_reward_file
from protocol.errors import ConfigurationError

READING_SECONDS: Final = 120.0  # for all data sets; what takes longer is left to the learner
LINES_NAMED: Final = 5


class TaskFault(msgspec.Struct, frozen=True):
    """What is wrong with one entry."""

    key: str  # "tasks.names", "tasks.jsonl", "tasks.jsonl_reward" or "tasks.reasoning_gym.GENERATOR"
    message: str
    broken_lines: tuple[int, ...] = ()  # of a data set, the first ones, where it has some that are not JSON
    broken: int = 0  # lines that are not JSON
    in_file: bool = False  # of a reward: it is a file's function


def faults_of(section: TasksSection) -> tuple[TaskFault, ...]:
    """Returns everything that is wrong with the tasks. Starts a process only for what is the owner's own: data sets,
    rewards, generators with parameters, plug-ins."""
    names_generator = any(name.startswith(PREFIX) for name in section.names)
    needs_a_process = (
        bool(section.jsonl or section.reasoning_gym)
        or section.jsonl_reward not in (AUTO, *BUILT_IN)
        or names_generator
        or not set(task_names()).isdisjoint(section.names)
    )
    return _asked(section) if needs_a_process else tuple(find_faults(section))


def find_faults(section: TasksSection) -> Iterator[TaskFault]:
    """Yields what is wrong with the reward, with each name, data set and generator, one by one, and with all of them
    together. Imports plug-ins, and runs the reward's file once, as a node's scoring workers do."""
    names: Counter[str] = Counter()
    reward_fault, _ = _tried("tasks.jsonl_reward", partial(_own_reward, section.jsonl_reward))
    if reward_fault is not None:  # it is the same for every data set
        yield msgspec.structs.replace(reward_fault, in_file=is_reward_file(section.jsonl_reward))
        section = section.model_copy(update={"jsonl_reward": AUTO})
    for name in section.names:
        fault, found = _tried("tasks.names", partial(_names_of, name))
        names.update(found)
        if fault is not None:
            yield fault
    for entry in section.jsonl:
        one = section.model_copy(update={"names": (), "jsonl": (entry,), "reasoning_gym": {}})
        fault, found = _tried("tasks.jsonl", partial(load_tasks, one))
        names.update(found)
        if fault is None:
            continue
        broken = list(_broken_lines(entry))
        yield TaskFault(fault.key, fault.message, tuple(broken[:LINES_NAMED]), len(broken))
    for generator, given in section.reasoning_gym.items():
        fault, found = _tried(f"{TABLE}.{generator}", partial(_generator_name, generator, given))
        names.update(found)
        if fault is not None:
            yield fault
    for name, count in names.items():
        if count > 1:
            yield TaskFault("tasks.names", f"{count} tasks are called {name!r}: name it once, or rename the data set")


def _names_of(name: str) -> list[str]:
    return [task.name for task in named_tasks(name)]


def _generator_name(generator: str, given: Mapping[str, Any]) -> list[str]:
    return [generator_task(generator, given).name]


def _own_reward(reward: str) -> Iterator[str]:
    if is_reward_file(reward):
        RewardFile.read(reward).load()
    elif reward not in (AUTO, *BUILT_IN):
        load_reward(reward)
    return iter(())


def _tried(key: str, load: Callable[[], Iterable[str]]) -> tuple[TaskFault | None, list[str]]:
    try:
        return None, list(load())
    except ConfigurationError as error:
        return TaskFault(key, str(error)), []


def _broken_lines(entry: Path) -> Iterator[int]:
    path = entry if entry.is_file() else Path(str(entry).rpartition("?")[0])
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    is_row = not line.strip() or isinstance(json.loads(line), dict)
                except (ValueError, RecursionError):
                    is_row = False
                if not is_row:
                    yield number
    except OSError:
        return


def _asked(section: TasksSection) -> tuple[TaskFault, ...]:
    try:
        done = subprocess.run(
            (sys.executable, "-P", "-m", "node.doctor.task_check"),
            input=section.model_dump_json().encode(),
            capture_output=True,
            timeout=READING_SECONDS,
            check=False,
        )
        return msgspec.json.decode(done.stdout, type=tuple[TaskFault, ...])
    except (subprocess.TimeoutExpired, OSError):
        return ()
    except msgspec.DecodeError:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return (TaskFault("tasks.names", f"reading the tasks ended with exit code {done.returncode}: {last}"),)


def main() -> None:
    answer, sys.stdout = sys.stdout.buffer, sys.stderr  # a plug-in may print
    answer.write(msgspec.json.encode(list(find_faults(TasksSection.model_validate_json(sys.stdin.buffer.read())))))


if __name__ == "__main__":
    main()
