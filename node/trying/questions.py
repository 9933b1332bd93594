"""Which questions are asked: those that a person types, and those of a task that nobody trains on. Imports no torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from node.tasks.split import Part, held_out
from node.tasks.task import Task
from node.trying.tried import Question
from protocol.errors import StarlingError

DEFAULT_TOKENS = 128  # of an answer to a question of the person's own
DEFAULT_QUESTIONS = 8  # of a task, where nobody is there to press Enter
MOST_DRAWS = 100_000  # of a task's prompts: one in sixteen is of the test set, and a small data set has few
HELP = """A line is a question. /task NAME asks a question of that task that nobody trains on, and judges the answers;
Enter asks the next one. /help shows this. Ctrl-D, Ctrl-C or /quit ends."""


def task_questions(task: Task, tokens: int | None) -> Iterator[Question]:
    """Yields the questions of the task's test set, each once, in the order in which ``starling eval`` takes them. An
    answer may have ``tokens``, by default as many as in training, as an action of a conversation always has."""
    for _, prompt in held_out(task, (Part.TEST,), range(MOST_DRAWS)):
        yield Question(prompt.text, tokens or task.max_new_tokens, (task, prompt))


def first_questions(task: Task, tokens: int | None, most: int | None) -> Iterator[Question]:
    """Yields the first ``most`` of them, by default ``DEFAULT_QUESTIONS``."""
    return itertools.islice(task_questions(task, tokens), most or DEFAULT_QUESTIONS)


def given_questions(lines: Iterable[str], tokens: int | None) -> Iterator[Question]:
    """Yields a question for each line that is not empty."""
    for line in lines:
        if line.strip():
            yield own_question(line.removesuffix("\n"), tokens)


def own_question(text: str, tokens: int | None) -> Question:
    """Returns a question of the person's own. What is not UTF-8 in it becomes a question mark."""
    return Question(text.encode("utf-8", "replace").decode(), tokens or DEFAULT_TOKENS)


def typed_questions(
    read: Callable[[], str | None],
    say: Callable[[str], None],
    find_task: Callable[[str], Task],
    tokens: int | None,
    first: str | None = None,
) -> Iterator[Question]:
    """Yields what a person asks, line by line, until ``read`` returns None. ``say`` shows a remark to the person.

    ``first`` names the task of which the first question is. What cannot be asked is said, and the next line is read.
    """
    begun: dict[str, Iterator[Question]] = {}

    def next_of(name: str) -> Question | None:
        try:
            if name not in begun:
                begun[name] = task_questions(find_task(name), tokens)
        except StarlingError as error:
            say(str(error))
            return None
        question = next(begun[name], None)
        if question is None:
            say(f"{name} has no further question that nobody trains on")
        return question

    task, line = first, read() if first is None else ""
    while line is not None:
        question = None
        match line.split():
            case ["/quit"]:
                return
            case ["/task", name]:
                task, question = name, next_of(name)
            case [] if task is not None:
                question = next_of(task)
            case [] | [str("/help" | "/task"), *_]:
                say(HELP)
            case [command, *_] if command.startswith("/"):
                say(f"there is no command {command}\n{HELP}")
            case _:
                question = own_question(line, tokens)
        if question is not None:
            yield question
        line = read()
