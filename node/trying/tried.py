"""One question and what the models answered: for people as lines, for programs as JSON. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Struct

from node.printable import one_line, printable, printable_lines
from node.quantities import counted
from node.tasks.catalogue import JudgedAnswer
from node.tasks.task import Prompt, Task

TEXT_CHARACTERS = 40_000  # shown of a question or an answer, at most
TEXT_LINES = 2_000
EXPECTED = "expected"


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked; of a task, with the prompt by which it is judged."""

    text: str
    max_new_tokens: int
    of_task: tuple[Task, Prompt] | None = None


class Answer(Struct, frozen=True):
    """What one model answered."""

    model: str  # "base" or "round 12"
    round: int  # rounds trained
    checkpoint: str | None  # None: the base model
    text: str
    tokens: int  # the one that ended it included
    ended: bool  # whether the model ended it; otherwise it was cut
    judged: JudgedAnswer | None  # of a task's question
    right: bool | None  # likewise


class Tried(Struct, frozen=True):
    """What ``starling try --json`` prints for each question."""

    question: str
    task: str | None
    seed: int | None  # which of the task's questions
    right_answer: str | None  # None where the task does not tell one
    answers: tuple[Answer, ...]


class Answering(Protocol):
    """What answers a question; it calls ``on_step`` with what it is doing."""

    def __call__(self, question: Question, *, on_step: Callable[[str], None]) -> Tried: ...


def tried_lines(tried: Tried, *, with_question: bool) -> Iterator[str]:
    """Yields the question, the right answer where one is known, and the answers below each other."""
    if with_question:
        yield _beside("> ", tried.question)
    width = max(len(label) for label in (EXPECTED, *(answer.model for answer in tried.answers)))
    if tried.right_answer is not None:
        yield _beside(f"{EXPECTED:<{width}}  ", tried.right_answer)
    for answer in tried.answers:
        cut = "" if answer.ended else f" … (cut after {counted(answer.tokens, 'token')})"
        yield _beside(f"{answer.model:<{width}}  ", (answer.text.strip("\n") or "(nothing)") + cut)
        if answer.judged is not None:
            yield " " * (width + 2) + _verdict(answer.judged, right=bool(answer.right))


def _verdict(judged: JudgedAnswer, *, right: bool) -> str:
    word = "right" if right else "wrong"
    missing = f"; no answer was found by {judged.found_by}" if judged.extracted is None else ""
    fault = "" if judged.fault is None else f"; {one_line(judged.fault, 400)}"
    return f"→ {word}, reward {judged.reward:g}{missing}{fault}"


def _beside(label: str, text: str) -> str:
    """Returns ``text``, escaped, with its lines below each other to the right of ``label``."""
    return label + printable_lines(text, TEXT_CHARACTERS, TEXT_LINES).replace("\n", "\n" + " " * len(label))


@dataclass(slots=True)
class MeanRewards:
    """The rewards of what was judged, by task and model."""

    _rewards: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, tried: Tried) -> None:
        for answer in tried.answers:
            if tried.task is not None and answer.judged is not None:
                of_task = self._rewards.setdefault(tried.task, {})
                of_task.setdefault(answer.model, []).append(answer.judged.reward)

    def lines(self) -> Iterator[str]:
        """Yields one line a task."""
        for task, by_model in self._rewards.items():
            means = ", ".join(f"{model} {sum(each) / len(each):.2f}" for model, each in by_model.items())
            asked = max(map(len, by_model.values()))
            yield f"mean reward of {counted(asked, 'question')} of {printable(task)}: {means}"
