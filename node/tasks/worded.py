"""Tasks for models that read and reason: a generator's own question, and an answer in ``<answer>`` tags.

The reward is 1 if what stands in the last ``<answer>…</answer>`` is right, otherwise 0: no tags, no answer.
There is no reward for the tags alone.

The library's ``propositional_logic`` takes any text without an operator for a variable and tries all assignments, 2ⁿ of
them, so a stranger's answer of forty made-up names would fill the memory; and it gives full marks for a premise that is
repeated. ``is_conclusion`` looks first.

The library's version is part of the configuration's hash, so that only the fields that differ from its defaults stand
in a task.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from node.tasks.answers import CLOSING, OPENING, is_same_number, is_same_text, tagged_answer
from node.tasks.canonical import has_form_of, is_plain, is_reasoned
from node.tasks.generators import AUDITED, COMPARED, REFUSED
from node.tasks.reasoning import GeneratorTask, library_version
from node.tasks.task import Prompt, check_ref
from protocol.errors import ConfigurationError
from protocol.messages import PromptRef

PROPOSITION_CHARACTERS: Final = 200
_REDUCTIONS: Final = re.compile(r"¬v|v[∧∨→↔]v|\(v\)")  # each is a formula if v is one
INSTRUCTION: Final = (
    f"\n\nThink step by step. Then write your final answer, and nothing else, between {OPENING} and {CLOSING}."
)
ANSWER_CHARACTERS: Final = 2_000  # a longer answer is wrong; no right one comes near it


def is_conclusion(text: str, variables: Collection[str], premises: Sequence[str]) -> bool:
    """Returns whether ``text`` is a formula of these variables, and none of the premises as written."""
    formula = "".join(text.split())
    if len(formula) > PROPOSITION_CHARACTERS or _bare(formula) in {_bare("".join(each.split())) for each in premises}:
        return False
    shape = "".join("v" if character in variables else character for character in formula)
    while (reduced := _REDUCTIONS.sub("v", shape)) != shape:
        shape = reduced
    return shape == "v" and "v" not in formula


def _bare(formula: str) -> str:
    """Without the parentheses around the whole; a formula that merely begins and ends with some stays different."""
    return formula[1:-1] if formula.startswith("(") and formula.endswith(")") else formula


class Scoring(StrEnum):
    """How a task decides whether an answer is right."""

    TEXT = "text"  # equal but for case and white space
    NUMBER = "number"  # one number of the same value
    LIBRARY = "library"  # full marks by the generator's score_answer, which must be in ``AUDITED``
    PROPOSITION = "proposition"  # a formula of the question's variables, with the library's full marks


@dataclass(frozen=True)
class WordedTask(GeneratorTask):
    """A generator with those fields of its configuration that differ from the library's defaults."""

    scoring: Scoring = Scoring.TEXT
    bare: bool = False  # the question alone is asked, and the whole completion is the answer

    def __post_init__(self) -> None:
        allowed = AUDITED if self.scoring is Scoring.LIBRARY else AUDITED | COMPARED
        if self.generator not in allowed:
            because = REFUSED.get(self.generator, "it has not been read")
            raise ConfigurationError(
                f"task {self.name!r}: reasoning-gym's {self.generator!r} with scoring {self.scoring.value!r} is not in "
                f"the audit ({because}); choose another generator, or read it and add it to node/tasks/generators.py"
            )

    @property
    def shape(self) -> Mapping[str, Any]:
        return {
            "kind": "worded",
            "library": library_version(),
            "generator": self.generator,
            "config": dict(self.generator_config),
            "seeds": self.seeds,
            "instruction": self.instruction,
            "scoring": self.scoring.value,
            "max_new_tokens": self.max_new_tokens,
        }

    @property
    def instruction(self) -> str:
        return "" if self.bare else INSTRUCTION

    def prompt(self, ref: PromptRef) -> Prompt:
        """Raises MalformedError for a reference that this version and configuration of the task does not have."""
        check_ref(self, ref, self.seeds)
        entry = self.entry(ref.seed)
        question = entry["question"].strip()
        return Prompt(ref, question + self.instruction, entry["answer"], entry, question)

    def rewards(self, prompt: Prompt, completions: Sequence[str]) -> list[float]:
        return [float(self._is_right(prompt, self.extracted(text))) for text in completions]

    def extracted(self, completion: str) -> str | None:
        """Returns the answer that is scored, or None if the completion has none."""
        return completion.strip() if self.bare else tagged_answer(completion)

    def is_canonical(self, prompt: Prompt, completion: str) -> bool:
        """Returns whether ``completion`` is plain reasoning that ends with one answer, in the right answer's form; of a
        bare task, whether it is the answer in that form."""
        several = self.scoring in (Scoring.LIBRARY, Scoring.PROPOSITION)
        if self.bare:
            return is_plain(completion) and has_form_of(str(prompt.answer).strip(), completion, several=several)
        return is_reasoned(completion, str(prompt.answer), several=several)

    def _is_right(self, prompt: Prompt, answer: str | None) -> bool:
        if answer is None or len(answer) > ANSWER_CHARACTERS:
            return False
        match self.scoring:
            case Scoring.TEXT:
                return is_same_text(str(prompt.answer), answer)
            case Scoring.NUMBER:
                return is_same_number(str(prompt.answer), answer)
            case Scoring.PROPOSITION:
                given = prompt.entry["metadata"]
                return is_conclusion(answer, given["variables"], given["premises"]) and self.has_full_marks(
                    answer, prompt.entry
                )
            case Scoring.LIBRARY:
                return self.has_full_marks(answer, prompt.entry)
