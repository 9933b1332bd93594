"""A question of a peer that the own policy is asked with the answer as a remark before it (``answers.hints``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REMARK: Final = "(The answer is {answer}.) "


@dataclass(frozen=True, slots=True)
class Hint:
    """A question that ``peer`` answered rightly."""

    task: str
    seed: int
    answer: str  # the task's own
    peer: str

    def asked(self, question: str) -> str:
        """Returns the prompt's text with the answer before it."""
        return REMARK.format(answer=self.answer) + question
