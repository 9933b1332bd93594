"""Tasks over reasoning-gym: equal seeds give equal entries on every node with this version of the library.

A task is a generator, its whole configuration, and a compact rendering of the question. One seed is one entry:
``dataset[seed]`` with the data set's own seed at 0, which every generator in the table computes from
``random.Random(seed)`` alone, in microseconds. The rendering exists because time per token is what a small machine pays
for; the entry, the answer and ``score_answer`` stay reasoning-gym's own.

Reward is 1 for full marks and 0 otherwise: partial marks pay for nearly right answers that a constant earns too.

Some generators' ``score_answer`` calls ``eval`` on the answer, which here may be a stranger's text, so a generator can
be a task only once its scoring has been read: ``AUDITED`` (generators.py) lists those; the constructor refuses others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version as distribution_version
from typing import Any, Final

from node.tasks.generators import AUDITED, create_dataset
from node.tasks.task import Prompt, check_ref
from node.tasks.templates import render
from protocol.errors import ConfigurationError
from protocol.messages import PromptRef

SEEDS: Final = 2**31  # seeds run from 0 to this, exclusive
FULL_MARKS: Final = 0.999


@dataclass(frozen=True)
class ReasoningTask:
    """One reasoning-gym generator as a ``Task``. The library is imported when the first prompt is made, not before."""

    name: str
    version: int
    max_new_tokens: int
    generator: str
    generator_config: Mapping[str, Any]  # every field but ``seed`` and ``size``, so that no default can change unseen
    question_template: str
    answer_template: str | None = None  # a shorter answer with full marks, where reasoning-gym's own is long
    is_exact: bool = False  # full marks are not enough, where ``score_answer`` gives them to nearly right answers too

    def __post_init__(self) -> None:
        if self.generator not in AUDITED:
            raise ConfigurationError(
                f"task {self.name!r}: nobody has checked that scoring reasoning-gym's {self.generator!r} is safe on "
                f"answers of strangers; use one of {', '.join(sorted(AUDITED))}, or read its score_answer and add it"
            )

    @cached_property
    def config_hash(self) -> bytes:
        shape = {
            "library": f"reasoning-gym {distribution_version('reasoning-gym')}",
            "generator": self.generator,
            "config": dict(self.generator_config),
            "question": self.question_template,
            "answer": self.answer_template,
            "is_exact": self.is_exact,
            "max_new_tokens": self.max_new_tokens,
        }
        canonical = json.dumps(shape, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).digest()[:16]

    @cached_property
    def _dataset(self) -> Any:
        return create_dataset(self.generator, seed=0, size=SEEDS, **self.generator_config)

    def ref(self, seed: int) -> PromptRef:
        """The prompt that ``seed``, any number from 0 up, falls on, counting round and round."""
        return PromptRef(self.name, self.version, self.config_hash, seed % SEEDS)

    def prompt(self, ref: PromptRef) -> Prompt:
        """Raises MalformedError for a reference that this task, in this version and configuration, does not have."""
        check_ref(self, ref, SEEDS)
        entry = self._dataset[ref.seed]
        answer = entry["answer"]
        if self.answer_template is not None:
            answer = render(self.answer_template, entry["metadata"])
        return Prompt(ref, render(self.question_template, entry["metadata"]), answer, entry)

    def rewards(self, prompt: Prompt, completions: Sequence[str]) -> list[float]:
        entry = dict(prompt.entry)
        return [float(self._is_right(text, prompt.answer, entry)) for text in completions]

    def _is_right(self, text: str, answer: str | None, entry: dict[str, Any]) -> bool:
        if self.is_exact and text != answer:
            return False
        return bool(self._dataset.score_answer(text, entry) >= FULL_MARKS)
