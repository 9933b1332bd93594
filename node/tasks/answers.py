"""Finds the answer in a completion, and compares it with the right one.

A completion is a stranger's text of up to half a megabyte. Everything here takes time in proportion to its length, and
nothing is evaluated. What compares is exact in its arithmetic: numbers stay text.

``final_answer`` takes, in this order, what stands in the last ``<answer>…</answer>``, in the last ``\\boxed{…}``, after
the last ``####`` that a number follows, or the last number. An opened mark that is not closed is no mark: there the
completion was cut.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

RIGHT: Final = 0.5  # the least reward of an answer that is called right
OPENING: Final = "<answer>"
CLOSING: Final = "</answer>"
HASHES: Final = "####"
BOX: Final = "\\boxed{"
BOX_CHARACTERS: Final = 2_000  # a longer \boxed{…} is none
# Digits with commas and points among them, no letter in front; what follows an e is no number in prose.
_RUN: Final = re.compile(r"(?<!\w)([-+−]?)(\.?[0-9][0-9,.]*)([eE][-+]?[0-9])?")
_NUMBER: Final = re.compile(r"([0-9]{1,3}(?:,[0-9]{3})+|[0-9]*)(?:\.([0-9]*))?")
_AFTER_HASHES: Final = re.compile(r"[ \t]*[$€£]?[ \t]*[-+−]?\.?[0-9]")
_WITH_UNIT: Final = re.compile(r"[$€£]?\s*[-+−]?[0-9,.]*[0-9]\s*(?:%|°|\s[A-Za-z. ]*)?")


class AnswerMark(StrEnum):
    """What an answer was found by."""

    TAGS = "<answer>"
    BOX = "\\boxed"
    HASHES = "####"
    NUMBER = "last number"


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """``text`` is without white space around it."""

    text: str
    mark: AnswerMark


def tagged_answer(completion: str) -> str | None:
    """Returns what stands in the last ``<answer>…</answer>``, without white space around it; None without such tags."""
    end = completion.rfind(CLOSING)
    begin = completion.rfind(OPENING, 0, end) if end >= 0 else -1
    return completion[begin + len(OPENING) : end].strip() if begin >= 0 else None


def final_answer(completion: str) -> FoundAnswer | None:
    """Returns the answer that a completion gives, by the first kind of mark that it has; None without any."""
    if (tagged := tagged_answer(completion)) is not None:
        return FoundAnswer(tagged, AnswerMark.TAGS)
    if (boxed := boxed_answer(completion)) is not None:
        return FoundAnswer(boxed, AnswerMark.BOX)
    _, hashes, after = completion.rpartition(HASHES)
    if hashes and _AFTER_HASHES.match(after):
        return FoundAnswer(after.lstrip().partition("\n")[0].strip(), AnswerMark.HASHES)
    last: str | None = None
    for run in _RUN.finditer(completion):
        last = _number(run) or last
    return None if last is None else FoundAnswer(last, AnswerMark.NUMBER)


def boxed_answer(text: str) -> str | None:
    """Returns what stands in the last ``\\boxed{…}``, braces within it balanced; None if it is absent or not closed."""
    begin = text.rfind(BOX)
    if begin < 0:
        return None
    inside = text[begin + len(BOX) : begin + len(BOX) + BOX_CHARACTERS]
    depth = 1
    for index, character in enumerate(inside):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return inside[:index].strip()
    return None


def reference_answer(answer: str) -> str:
    """Returns the right answer of a data set's field: after its last ``####``, in its last ``\\boxed{…}``, or all."""
    _, hashes, after = answer.rpartition(HASHES)
    if hashes:
        return after.strip()
    boxed = boxed_answer(answer)
    return answer.strip() if boxed is None else boxed


def is_same(right: str, given: str) -> bool:
    """Compares as numbers where ``right`` is one, with or without a unit (``is_same_number``), otherwise as text."""
    if is_number(right):
        return is_same_number(right, given)
    return is_same_text(right.strip("$ \n"), given.strip("$ \n"))


def is_number(text: str) -> bool:
    """Returns whether ``text`` is one number, alone or with a currency or unit: "$1,080" and "42 km" are, "2x" not."""
    return _WITH_UNIT.fullmatch(text.strip()) is not None and number_in(text) is not None


def is_same_number(right: str, given: str) -> bool:
    """Returns whether each has exactly one number, and of the same value: 1080, $1,080.00 and "1080 apples" are."""
    number = number_in(right)
    return number is not None and number == number_in(given)


def is_same_text(right: str, given: str) -> bool:
    """Compares without regard to case, empty lines and how much white space there is between words."""
    return _words(right) == _words(given)


def number_in(text: str) -> str | None:
    """Returns the one number in ``text``, in the shortest writing of its value; None if there is none or several."""
    plain = text.replace("{,}", ",").replace("\\,", "").replace("\\!", "")  # how LaTeX separates thousands
    runs = list(_RUN.finditer(plain))
    return _number(runs[0]) if len(runs) == 1 else None


def _number(run: re.Match[str]) -> str | None:
    sign, digits, exponent = run.groups()
    written = _NUMBER.fullmatch(digits.rstrip(".,"))
    if written is None or exponent is not None:
        return None
    whole, fraction = written[1].replace(",", "").lstrip("0") or "0", (written[2] or "").rstrip("0")
    value = f"{whole}.{fraction}" if fraction else whole
    return f"-{value}" if sign in ("-", "−") and value != "0" else value


def _words(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.casefold().split("\n") if line.strip()]
