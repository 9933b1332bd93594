"""How an answer is compared with the reference: exactly, or as mathematics (optional package math-verify).

Both have TRL's reward signature and read the column ``answer``. Exact matching ignores white space around either.
``math`` takes the last LaTeX or plain expression of the completion and asks whether it equals the reference; the
package bounds what it parses to mathematics, and the scorer bounds its time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

from node.tasks.plugins import RewardFunction, load_reward
from protocol.errors import ConfigurationError


def exact(prompts: Sequence[str], completions: Sequence[str], **columns: Sequence[Any]) -> list[float]:
    """1 where the completion is the column ``answer``, else 0."""
    answers = columns["answer"]
    return [float(text.strip() == str(answer).strip()) for text, answer in zip(completions, answers, strict=True)]


def math(prompts: Sequence[str], completions: Sequence[str], **columns: Sequence[Any]) -> list[float]:
    """1 where the completion's last expression equals the column ``answer`` as mathematics, else 0."""
    parse, verify = _math_verify()
    rewards = []
    for text, answer in zip(completions, columns["answer"], strict=True):
        # No timeouts of its own: they take SIGALRM, which the scoring worker guards itself with.
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
    """The reward called ``name``: built in, or a plug-in's. Raises ConfigurationError when there is none of use."""
    if name == "math":
        _math_verify()
    return BUILT_IN[name] if name in BUILT_IN else load_reward(name)
