"""The built-in rewards of data sets compare an answer with the right one.

    "exact"  the whole completion is the answer
    "final"  the answer that the completion ends with is the same number, or the same text (answers.py says which part)
    "math"   the same by the rules of mathematics (optional: math-verify)

All have TRL's reward signature and read the column ``answer``, of which the part after ``####`` or in ``\\boxed{…}``
is the right answer. math-verify parses nothing but mathematics, and the scorer bounds its time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

from node.tasks.answers import (
    HASHES,
    boxed_answer,
    final_answer,
    is_number,
    is_same,
    reference_answer,
    tagged_answer,
)
from node.tasks.plugins import RewardFunction, load_reward
from protocol.errors import ConfigurationError

AUTO: Final = "auto"
MATH_CHARACTERS: Final = 4_000  # the end of a completion that is searched for mathematics


def exact(prompts: Sequence[str], completions: Sequence[str], **columns: Sequence[Any]) -> list[float]:
    """Returns 1 for each completion equal to the right answer but for white space around either, otherwise 0."""
    return [
        float(text.strip() == reference_answer(str(answer)))
        for text, answer in zip(completions, columns["answer"], strict=True)
    ]


def final(prompts: Sequence[str], completions: Sequence[str], **columns: Sequence[Any]) -> list[float]:
    """Returns 1 for each completion whose final answer is the right one, otherwise 0."""
    return [
        float((found := final_answer(text)) is not None and is_same(reference_answer(str(answer)), found.text))
        for text, answer in zip(completions, columns["answer"], strict=True)
    ]


def math(prompts: Sequence[str], completions: Sequence[str], **columns: Sequence[Any]) -> list[float]:
    """Returns 1 for each completion whose answer equals the right one as mathematics, otherwise 0.

    Its answer is what stands in ``<answer>`` tags, otherwise what math-verify finds at its end.
    """
    parse, verify = _math_verify()
    rewards = []
    for text, answer in zip(completions, columns["answer"], strict=True):
        tagged = tagged_answer(text)
        given = text[-MATH_CHARACTERS:] if tagged is None else tagged[:MATH_CHARACTERS]
        # Without the package's own timeouts: they use SIGALRM, which the scoring worker needs for its guard.
        reference = parse(_as_mathematics(str(answer)), parsing_timeout=None)
        found = parse(given if tagged is None else _as_mathematics(given), parsing_timeout=None)
        rewards.append(float(bool(reference) and bool(verify(reference, found, timeout_seconds=None))))
    return rewards


def _as_mathematics(answer: str) -> str:
    """Marks LaTeX as such: math-verify takes bare text for plain numbers and expressions."""
    content = reference_answer(answer)
    return f"\\boxed{{{content}}}" if "\\" in content and "$" not in content else content


@functools.cache
def _math_verify() -> tuple[Callable[..., Any], Callable[..., Any]]:
    try:
        from math_verify import parse, verify  # type: ignore[import-untyped]  # optional, and slow to import
    except ImportError as error:
        raise ConfigurationError(
            "tasks.jsonl_reward is 'math', or 'auto' over answers in \\boxed{…}, and the package math-verify is not "
            "installed: pip install 'starling-swarm[math]', or set tasks.jsonl_reward to 'final'"
        ) from error
    return parse, verify


BUILT_IN: Final[dict[str, RewardFunction]] = {"exact": exact, "final": final, "math": math}


def fitting_reward(answers: Sequence[str]) -> str:
    """Returns the reward that "auto" stands for, by nothing but the data set: two nodes with one file agree.

    "math" if every right answer stands in a ``\\boxed{…}``; "final" if every one stands after ``####`` or is a number;
    otherwise "exact".
    """
    if all(HASHES in answer for answer in answers):
        return "final"
    if all(boxed_answer(answer) is not None for answer in answers):
        return "math"
    return "final" if all(is_number(reference_answer(answer)) for answer in answers) else "exact"


def reward_function(name: str) -> RewardFunction:
    """Returns the reward called ``name``, built in or a plug-in's. Raises ConfigurationError if it cannot be used."""
    if name == "math":
        _math_verify()
    return BUILT_IN[name] if name in BUILT_IN else load_reward(name)
