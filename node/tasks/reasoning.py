"""Tasks over reasoning-gym: equal seeds give equal entries on every node with this version of the library.

A task is a generator and its configuration (``GeneratorTask``), and a way to ask and to score. One seed is one entry:
``dataset[seed]`` with the data set's own seed at 0, which every generator in the audit computes from
``random.Random(seed)`` alone, in milliseconds at most. Reward is 1 for full marks and 0 otherwise: partial marks would
reward nearly right answers, which a constant earns too.

``ReasoningTask`` renders an entry compactly, for models of a million parameters: tokens are what costs time on a small
machine. ``worded.py`` has the tasks for models that read and reason. Its templates are ``str.format`` over the
generator's metadata, with lists joined by the separators named in the format: ``{matrix: /}`` joins the innermost lists
by a space and the next level by a slash; ``{numbers:}`` joins by nothing. A whole number is written without decimals,
so that ``7.0`` costs one character.

Some generators' ``score_answer`` calls ``eval`` on the answer, which here may be a stranger's text. Therefore only a
generator that was audited can be a task (generators.py); the constructors refuse others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version as distribution_version
from typing import Any, Final

from node.tasks.generators import AUDITED, COMPARED, create_dataset
from node.tasks.task import Prompt, check_ref, config_hash_of
from protocol.errors import ConfigurationError
from protocol.messages import PromptRef

SEEDS: Final = 2**31  # seeds run from 0 to this, exclusive
SEEDS_TRIED: Final = 20
FULL_MARKS: Final = 0.999


@dataclass(frozen=True)
class GeneratorTask(ABC):
    """What all tasks over a generator have. The library is imported when the first prompt is made."""

    name: str
    version: int
    max_new_tokens: int
    generator: str
    generator_config: Mapping[str, Any]
    seeds: int = field(default=SEEDS, kw_only=True)  # fewer for a generator that keeps a list of them

    @cached_property
    def dataset(self) -> Any:
        return create_dataset(self.generator, seed=0, size=self.seeds, **self.generator_config)

    @property
    @abstractmethod
    def shape(self) -> Mapping[str, Any]:
        """Everything that shapes prompts and rewards."""

    @cached_property
    def config_hash(self) -> bytes:
        """See ``Task``."""
        return config_hash_of(self.shape)

    def ref(self, seed: int) -> PromptRef:
        """Returns the reference of prompt ``seed`` modulo the number of seeds."""
        return PromptRef(self.name, self.version, self.config_hash, seed % self.seeds)

    def entry(self, seed: int) -> Mapping[str, Any]:
        """Returns the library's entry of ``seed``, or of the next seed that has one.

        Every seed of a built-in task has one. An owner's parameters may leave some without, and a peer may ask for
        just those. Raises ConfigurationError if none of ``SEEDS_TRIED`` has.
        """
        for tried in range(SEEDS_TRIED):
            try:
                entry: Mapping[str, Any] = self.dataset[(seed + tried) % self.seeds]
                return entry
            except Exception as error:  # noqa: BLE001 - a generator may raise anything
                because = f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"task {self.name!r}: its parameters make no question ({because}): choose others")

    def has_full_marks(self, text: str, entry: Mapping[str, Any]) -> bool:
        """Returns whether the library's ``score_answer`` gives ``text`` full marks, and can read it at all."""
        try:
            return bool(self.dataset.score_answer(text, dict(entry)) >= FULL_MARKS)
        except Exception:  # noqa: BLE001 - some raise whatever their parsing raises
            return False


@dataclass(frozen=True)
class ReasoningTask(GeneratorTask):
    """A generator with its whole configuration, all fields but ``seed`` and ``size``, and compact templates."""

    question_template: str
    answer_template: str | None = None  # a shorter answer that gets full marks, if reasoning-gym's is long
    is_exact: bool = False  # equal text alone is right, if ``score_answer`` takes wrong answers, or was not audited

    def __post_init__(self) -> None:
        if self.generator not in AUDITED and not (self.is_exact and self.generator in COMPARED):
            raise ConfigurationError(
                f"task {self.name!r}: scoring reasoning-gym's {self.generator!r} has not been checked to be safe on "
                f"answers of strangers; use one of {', '.join(sorted(AUDITED))}, or read its score_answer and add it"
            )

    @property
    def shape(self) -> Mapping[str, Any]:
        return {
            "library": library_version(),
            "generator": self.generator,
            "config": dict(self.generator_config),
            "question": self.question_template,
            "answer": self.answer_template,
            "is_exact": self.is_exact,
            "max_new_tokens": self.max_new_tokens,
        }

    def prompt(self, ref: PromptRef) -> Prompt:
        """Raises MalformedError for a reference that this version and configuration of the task does not have."""
        check_ref(self, ref, self.seeds)
        entry = self.entry(ref.seed)
        answer = entry["answer"]
        if self.answer_template is not None:
            answer = render(self.answer_template, entry["metadata"])
        return Prompt(ref, render(self.question_template, entry["metadata"]), answer, entry)

    def rewards(self, prompt: Prompt, completions: Sequence[str]) -> list[float]:
        return [float(self._is_right(text, prompt)) for text in completions]

    def is_canonical(self, prompt: Prompt, completion: str) -> bool:
        """Returns whether ``completion`` is the task's own answer, letter by letter."""
        return completion == prompt.answer

    def _is_right(self, text: str, prompt: Prompt) -> bool:
        return text == prompt.answer if self.is_exact else self.has_full_marks(text, prompt.entry)


def library_version() -> str:
    return f"reasoning-gym {distribution_version('reasoning-gym')}"


class _Joined:
    """A list whose format specification is its separators, innermost first."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def __format__(self, separators: str) -> str:
        nested = any(isinstance(item, _Joined) for item in self._items)
        inner, own = (separators[:-1], separators[-1:]) if nested else (separators, separators)
        return own.join(format(item, inner if isinstance(item, _Joined) else "") for item in self._items)


class _Fields:
    """The fields of metadata, compact: made as the template asks for them, since it names few."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata

    def __getitem__(self, name: str) -> Any:
        return _compact(self._metadata[name])


def _compact(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return _Joined([_compact(item) for item in value])
    return str(value).removesuffix(".0")


def render(template: str, metadata: Mapping[str, Any]) -> str:
    """Returns the template filled with ``metadata``. Raises KeyError for a field that ``metadata`` lacks."""
    return template.format_map(_Fields(metadata))
