"""Reads a configuration's data sets and plug-ins in a process of its own: ``python -m node.doctor.task_check``.

Standard input: a ``TasksSection`` as JSON. Standard output: ``TaskFault``s as a JSON list, all that there are. Own
files may be large and plug-ins may import anything, so neither belongs into the process that keeps a node up.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from node.configuration import TasksSection
from node.tasks.matching import AUTO, BUILT_IN
from node.tasks.plugins import task_names
from node.tasks.registry import load_tasks, named_tasks
from protocol.errors import ConfigurationError

READING_SECONDS: Final = 120.0  # for all data sets; what takes longer is left to the learner
LINES_NAMED: Final = 5


class TaskFault(msgspec.Struct, frozen=True):
    """What is wrong with one entry."""

    key: str  # "tasks.names", "tasks.jsonl" or "tasks.jsonl_reward"
    message: str
    broken_lines: tuple[int, ...] = ()  # of a data set, the first ones, where it has some that are not JSON
    broken: int = 0  # lines that are not JSON


def faults_of(section: TasksSection) -> tuple[TaskFault, ...]:
    """Returns everything that is wrong with the tasks. Starts a process only for data sets and plug-ins."""
    needs_a_process = bool(section.jsonl) or not set(task_names()).isdisjoint(section.names)
    return _asked(section) if needs_a_process else tuple(find_faults(section))


def find_faults(section: TasksSection) -> Iterator[TaskFault]:
    """Yields what is wrong with each name and each data set, read one by one, and with all of them together."""
    names: Counter[str] = Counter()
    is_own_reward, told = section.jsonl_reward not in (AUTO, *BUILT_IN), False
    for name in section.names:
        fault, found = _tried("tasks.names", partial(_names_of, name))
        names.update(found)
        if fault is not None:
            yield fault
    for entry in section.jsonl:
        one = section.model_copy(update={"names": (), "jsonl": (entry,)})
        fault, found = _tried("tasks.jsonl", partial(load_tasks, one))
        names.update(found)
        if fault is None:
            continue
        if is_own_reward and "tasks.jsonl:" not in fault.message:  # it is the same for every file
            if not told:
                yield TaskFault("tasks.jsonl_reward", fault.message)
            told = True
            continue
        broken = list(_broken_lines(entry))
        yield TaskFault(fault.key, fault.message, tuple(broken[:LINES_NAMED]), len(broken))
    for name, count in names.items():
        if count > 1:
            yield TaskFault("tasks.names", f"{count} tasks are called {name!r}: name it once, or rename the data set")


def _names_of(name: str) -> list[str]:
    return [task.name for task in named_tasks(name)]


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
