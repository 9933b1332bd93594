"""Tasks over reasoning-gym: equal seeds give equal entries on every node with this version of the library.

A task is a generator, its whole configuration, and a compact rendering of the question. One seed is one entry:
``dataset[seed]`` with the data set's own seed at 0, which every generator in the table computes from
``random.Random(seed)`` alone, in microseconds. The rendering saves tokens, which are what costs time on a small
machine; the entry, the answer and ``score_answer`` are reasoning-gym's own.

Reward is 1 for full marks and 0 otherwise: partial marks would reward nearly right answers, which a constant earns too.

Some generators' ``score_answer`` calls ``eval`` on the answer, which here may be a stranger's text. Therefore only a
generator whose scoring has been read can be a task: ``AUDITED`` (generators.py) lists these; the constructor refuses
others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version as distribution_version
from typing import Any, Final

from node.tasks.generators import AUDITED, create_dataset
from node.tasks.task import Prompt, check_ref, config_hash_of
from node.tasks.templates import render
from protocol.errors import ConfigurationError
from protocol.messages import PromptRef

SEEDS: Final = 2**31  # seeds run from 0 to this, exclusive
FULL_MARKS: Final = 0.999


@dataclass(frozen=True)
class ReasoningTask:
    """One reasoning-gym generator as a ``Task``. The library is imported when the first prompt is made."""

    name: str
    version: int
    max_new_tokens: int
    generator: str
    generator_config: Mapping[str, Any]  # all fields but ``seed`` and ``size``, so that no default can change unnoticed
    question_template: str
    answer_template: str | None = None  # a shorter answer that gets full marks, if reasoning-gym's is long
    is_exact: bool = False  # the text must be equal too, if ``score_answer`` gives full marks to wrong answers

    def __post_init__(self) -> None:
        if self.generator not in AUDITED:
            raise ConfigurationError(
                f"task {self.name!r}: scoring reasoning-gym's {self.generator!r} has not been checked to be safe on "
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
        return config_hash_of(shape)

    @cached_property
    def _dataset(self) -> Any:
        return create_dataset(self.generator, seed=0, size=SEEDS, **self.generator_config)

    def ref(self, seed: int) -> PromptRef:
        """Returns the reference of prompt ``seed`` modulo ``SEEDS``."""
        return PromptRef(self.name, self.version, self.config_hash, seed % SEEDS)

    def prompt(self, ref: PromptRef) -> Prompt:
        """Raises MalformedError for a reference that this version and configuration of the task does not have."""
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
