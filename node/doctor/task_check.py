"""Reads a configuration's data sets, rewards, generators and plug-ins in a process of its own,
``python -m node.doctor.task_check SECONDS``.

Standard input: a ``TasksSection`` as JSON. Standard output: ``TaskFault``s as JSON lines, all that there are; before
each generator with parameters, its name as a line. Own files may be large, plug-ins may import anything, and a
generator may search for ever for a question that its parameters rule out, so none of them belongs into the process that
keeps a node up. ``SIGPROF`` ends this process where a generator takes longer than SECONDS of computing.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from node.configuration import TasksSection
from node.environments.adapters.textarena_games import PREFIX as GAMES
from node.tasks.matching import AUTO, BUILT_IN
from node.tasks.own_file import is_own_file
from node.tasks.parameters import PREFIX, TABLE, generator_task
from node.tasks.plugins import load_reward, task_names
from node.tasks.registry import load_tasks, named_tasks
from node.tasks.reward_file import RewardFile
from protocol.errors import ConfigurationError

READING_SECONDS: Final = 120.0  # for all data sets; what takes longer is left to the learner
GENERATOR_SECONDS: Final = 10.0  # of computing, for a generator's first questions: milliseconds as a rule
LINES_NAMED: Final = 5


class TaskFault(msgspec.Struct, frozen=True):
    """What is wrong with one entry."""

    key: str  # "tasks.names", "tasks.jsonl", "tasks.jsonl_reward" or "tasks.reasoning_gym.GENERATOR"
    message: str
    broken_lines: tuple[int, ...] = ()  # of a data set, the first ones, where it has some that are not JSON
    broken: int = 0  # lines that are not JSON
    in_file: bool = False  # of a reward or a name: it is the owner's own file's


def faults_of(section: TasksSection) -> tuple[TaskFault, ...]:
    """Returns everything that is wrong with the tasks. Starts a process only for what is the owner's own: data sets,
    rewards, generators with parameters, plug-ins, games, files with tasks."""
    names_code = any(name.startswith((PREFIX, GAMES)) or is_own_file(name) for name in section.names)
    needs_a_process = (
        bool(section.jsonl or section.reasoning_gym)
        or section.jsonl_reward not in (AUTO, *BUILT_IN)
        or names_code
        or not set(task_names()).isdisjoint(section.names)
    )
    return _asked(section) if needs_a_process else tuple(find_faults(section))


def find_faults(section: TasksSection, trying: Callable[[str], object] = str) -> Iterator[TaskFault]:
    """Yields what is wrong with the reward, with each name, data set and generator, one by one, and with all of them
    together. Imports plug-ins, and runs the reward's file once, as a node's scoring workers do. Calls ``trying`` with
    the name of each generator that has parameters, before it is tried, and with "" after the last."""
    names: Counter[str] = Counter()
    reward_fault, _ = _tried("tasks.jsonl_reward", partial(_own_reward, section.jsonl_reward))
    if reward_fault is not None:  # it is the same for every data set
        yield msgspec.structs.replace(reward_fault, in_file=is_own_file(section.jsonl_reward))
        section = section.model_copy(update={"jsonl_reward": AUTO})
    for name in section.names:
        fault, found = _tried("tasks.names", partial(_names_of, name))
        names.update(found)
        if fault is not None:
            yield msgspec.structs.replace(fault, in_file=is_own_file(name))
    for entry in section.jsonl:
        one = section.model_copy(update={"names": (), "jsonl": (entry,), "reasoning_gym": {}})
        fault, found = _tried("tasks.jsonl", partial(load_tasks, one))
        names.update(found)
        if fault is None:
            continue
        broken = list(_broken_lines(entry))
        yield TaskFault(fault.key, fault.message, tuple(broken[:LINES_NAMED]), len(broken))
    for generator, given in section.reasoning_gym.items():
        trying(generator)
        fault, found = _tried(f"{TABLE}.{generator}", partial(_generator_name, generator, given))
        names.update(found)
        if fault is not None:
            yield fault
    trying("")
    for name, count in names.items():
        if count > 1:
            yield TaskFault("tasks.names", f"{count} tasks are called {name!r}: name it once, or rename the data set")


def _names_of(name: str) -> list[str]:
    return [task.name for task in named_tasks(name)]


def _generator_name(generator: str, given: Mapping[str, Any]) -> list[str]:
    return [generator_task(generator, given).name]


def _own_reward(reward: str) -> Iterator[str]:
    if is_own_file(reward):
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


def check_generators(section: TasksSection) -> None:
    """Raises ``ConfigurationError`` for the first table of a generator that is wrong, before this process reads one."""
    tables = TasksSection(reasoning_gym=section.reasoning_gym)
    for fault in faults_of(tables) if tables.reasoning_gym else ():
        raise ConfigurationError(fault.message if fault.message.startswith(TABLE) else f"{fault.key}: {fault.message}")


def _asked(section: TasksSection) -> tuple[TaskFault, ...]:
    """Asks the process; once more without a generator that it could not end."""
    try:
        done = subprocess.run(
            (sys.executable, "-P", "-m", "node.doctor.task_check", str(GENERATOR_SECONDS)),
            input=section.model_dump_json().encode(),
            capture_output=True,
            timeout=READING_SECONDS,
            check=False,
        )
        said, code = _lines_said(done.stdout), done.returncode
    except subprocess.TimeoutExpired as expired:
        said, code = _lines_said(expired.stdout or b""), -signal.SIGPROF
    except OSError:
        return ()
    except msgspec.DecodeError:
        return (_broken_off(done),)
    generator = next((each for each in reversed(said) if isinstance(each, str)), "")
    if code == -signal.SIGPROF and generator:
        others = {name: given for name, given in section.reasoning_gym.items() if name != generator}
        names = section.names or (() if others or section.jsonl else ("default",))
        rest = section.model_copy(update={"reasoning_gym": others, "names": names})
        return (*faults_of(rest), _endless(generator, section.reasoning_gym[generator]))
    if code > 0:
        return (_broken_off(done),)
    return tuple(each for each in said if isinstance(each, TaskFault))


def _lines_said(output: bytes) -> list[TaskFault | str]:
    return [msgspec.json.decode(line, type=TaskFault | str) for line in output.splitlines()]


def _endless(generator: str, given: Mapping[str, Any]) -> TaskFault:
    parameters = ", ".join(f"{name} = {json.dumps(value, default=str)}" for name, value in given.items())
    return TaskFault(
        f"{TABLE}.{generator}",
        f"the generator makes no question in {GENERATOR_SECONDS:g} s of computing with {parameters}: none may fit them",
    )


def _broken_off(done: subprocess.CompletedProcess[bytes]) -> TaskFault:
    last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return TaskFault("tasks.names", f"reading the tasks ended with exit code {done.returncode}: {last}")


def main() -> None:
    answer, sys.stdout = sys.stdout.buffer, sys.stderr  # a plug-in may print
    seconds = float(sys.argv[1])

    def tell(said: TaskFault | str) -> None:
        answer.write(msgspec.json.encode(said) + b"\n")
        answer.flush()

    def trying(generator: str) -> None:
        tell(generator)
        signal.setitimer(signal.ITIMER_PROF, seconds if generator else 0.0)

    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for fault in find_faults(TasksSection.model_validate_json(sys.stdin.buffer.read()), trying):
        tell(fault)


if __name__ == "__main__":
    main()
