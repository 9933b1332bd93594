"""Which right answers are worth copying: those in the one form that a task would write itself.

A scorer is lenient, since what it rewards is being right: blanks in front, leading zeros or ``$`` around a number cost
nothing. A learner that copies such answers learns the blanks. So a learner that copies what another policy wrote asks
here first. A task may say which texts are in its form (``KnowsItsForm``); of all others, plug-ins' too, only padding is
refused.
"""

from __future__ import annotations

import re
from typing import Final, Protocol, runtime_checkable

from node.tasks.answers import CLOSING, OPENING, is_same_number
from node.tasks.task import Prompt, Task

BLANKS_TOGETHER: Final = 16  # the deepest indentation that a table or a program in an answer needs
EQUAL_TOGETHER: Final = 64  # of any character: a line under a heading, a row of a grid
ENDING_CHARACTERS: Final = 64  # that may follow an answer: a unit, a full stop, closing marks
_PADDED: Final = re.compile(rf"\s{{{BLANKS_TOGETHER + 1},}}|(.)\1{{{EQUAL_TOGETHER},}}", re.DOTALL)
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]*)(?:\.[0-9]{1,12})?")


@runtime_checkable
class KnowsItsForm(Protocol):
    """A task that can tell its own way to write a right answer from others that its scorer takes."""

    def is_canonical(self, prompt: Prompt, completion: str) -> bool:
        """Returns whether ``completion``, which is right, is written as the task would write it. Takes time in
        proportion to its length."""


@runtime_checkable
class HasFreeText(Protocol):
    """A task whose answers may have any text around what is scored: the bare answer is then one style of many."""

    has_free_text: bool


@runtime_checkable
class KnowsItsText(Protocol):
    """A task of several right texts that can tell whether it would write one of them."""

    def is_own_text(self, prompt: Prompt, completion: str) -> bool: ...


def is_own_text(task: Task, prompt: Prompt, completion: str) -> bool:
    """Returns whether a right ``completion`` is, letter by letter, what the task itself would write: whoever copies it
    copies nothing of its sender."""
    if isinstance(task, KnowsItsText):
        return task.is_own_text(prompt, completion)
    return completion == prompt.answer and not (isinstance(task, HasFreeText) and task.has_free_text)


def is_canonical(task: Task, prompt: Prompt, completion: str) -> bool:
    """Returns whether a right ``completion`` is in a form that is worth copying."""
    if isinstance(task, KnowsItsForm):
        return task.is_canonical(prompt, completion)
    return is_plain(completion)


def is_plain(text: str) -> bool:
    """Returns whether ``text`` is not padded: no white space around it, and no long run of one character."""
    return text == text.strip() and _PADDED.search(text) is None


def is_reasoned(completion: str, right: str, *, several: bool) -> bool:
    """Returns whether ``completion`` is plain reasoning that ends with its only tagged answer, written as ``right`` is.

    ``several``: there are right answers besides ``right``; then one of them may be about twice as long. One line end is
    allowed at either side of the answer, as many models write it.
    """
    before, opening, rest = completion.partition(OPENING)
    answer, closing, after = rest.partition(CLOSING)
    if not (opening and closing) or after or _PADDED.search(before) is not None:
        return False
    answer = answer.removeprefix("\n").removesuffix("\n")
    return is_plain(answer) and has_form_of(right.strip(), answer, several=several)


def ends_with_answer(completion: str, found: str, right: str) -> bool:
    """Returns whether ``completion`` is plain, ends with ``found``, and that is hardly longer than ``right``."""
    if not is_plain(completion) or len(found) > _longest(right):
        return False
    return completion.rfind(found) >= len(completion) - len(found) - ENDING_CHARACTERS


def has_form_of(right: str, answer: str, *, several: bool) -> bool:
    """Returns whether ``answer`` is written as ``right``: the same text, or the same number without anything around."""
    if several:
        return len(answer) <= _longest(right)
    return answer == right or (_NUMBER.fullmatch(answer) is not None and is_same_number(right, answer))


def _longest(right: str) -> int:
    return 2 * len(right) + ENDING_CHARACTERS
