"""A reward function from a Python file of the node's owner: ``tasks.jsonl_reward = "FILE.py:FUNCTION"``.

The code runs at the first score, which in a node happens in the scoring workers alone (``worker.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

from node.tasks.own_file import OwnFile
from protocol.errors import ConfigurationError


class RewardFile(OwnFile):
    """A ``RewardFunction``."""

    KEY: ClassVar = "tasks.jsonl_reward"
    WANTED: ClassVar = "function"

    def load(self) -> Callable[..., Sequence[float]]:
        """Raises ``ConfigurationError`` also for what is no function."""
        function = super().load()
        if not callable(function):
            raise ConfigurationError(
                f"{self.KEY}: {self.name} of {self.path} is a {type(function).__name__}, not a function"
            )
        return cast(Callable[..., Sequence[float]], function)

    def __call__(self, prompts: Sequence[str], completions: Sequence[str], **columns: Sequence[Any]) -> Sequence[float]:
        return self.load()(prompts, completions, **columns)
