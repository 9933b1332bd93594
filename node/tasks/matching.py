"""The built-in rewards compare an answer with the reference: exactly, or as mathematics (optional: math-verify).

Both have TRL's reward signature and read the column ``answer``. Exact matching ignores surrounding white space.
``math`` takes the last LaTeX or plain expression of the completion and checks whether it equals the reference; the
package parses nothing but mathematics, and the scorer bounds its time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

from node.tasks.plugins import RewardFunction, load_reward
from protocol.errors import ConfigurationError


def exact(prompts: Sequence[str], completions: Sequence[str], **columns: Sequence[Any]) -> list[float]:
    """Returns 1 for each completion equal to the column ``answer``, otherwise 0."""
    answers = columns["answer"]
    return [float(text.strip() == str(answer).strip()) for text, answer in zip(completions, answers, strict=True)]


def math(prompts: Sequence[str], completions: Sequence[str], **columns: Sequence[Any]) -> list[float]:
    """Returns 1 for each completion whose last expression equals ``answer`` as mathematics, otherwise 0."""
    parse, verify = _math_verify()
    rewards = []
    for text, answer in zip(completions, columns["answer"], strict=True):
        # Without the package's own timeouts: they use SIGALRM, which the scoring worker needs for its guard.
        reference = parse(str(answer), parsing_timeout=None)
        found = parse(text, parsing_timeout=None)
        rewards.append(float(bool(reference) and bool(verify(reference, found, timeout_seconds=None))))
    return rewards


@functools.cache
def _math_verify() -> tuple[Callable[..., Any], Callable[..., Any]]:
    try:
        from math_verify import parse, verify  # type: ignore[import-untyped]  # optional, and slow to import
    except ImportError as error:
        raise ConfigurationError(
            "tasks.jsonl_reward is 'math', and the package math-verify is not installed: "
            "pip install 'starling-swarm[math]', or set tasks.jsonl_reward to 'exact'"
        ) from error
    return parse, verify


BUILT_IN: Final[dict[str, RewardFunction]] = {"exact": exact, "math": math}


def reward_function(name: str) -> RewardFunction:
    """Returns the reward called ``name``, built in or a plug-in's. Raises ConfigurationError if it cannot be used."""
    if name == "math":
        _math_verify()
    return BUILT_IN[name] if name in BUILT_IN else load_reward(name)
