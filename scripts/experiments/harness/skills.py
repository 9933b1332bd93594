"""Skills on short strings, as tasks: the skills that the small models of the experiments have or lack.

Each prompt is a capital that names the skill, four letters, and ``=``. The answer to one of ``SKILLS`` is the letters
in another order; those of ``HARDER`` have to be computed, the letters from a on standing for the digits. An answer that
ignores the question cannot match. ``COPY`` is the basis of all: every model is taught it, no experiment measures it.

Questions are split by their text as those of every task (``node.tasks.split``): the models are made without held-out
ones, nodes train on none, and those of the test set measure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Final

from node.learner.generation.hint import REMARK
from node.tasks.task import Prompt, check_ref, config_hash_of
from protocol.messages import PromptRef

SEEDS: Final = 1 << 31
LENGTH: Final = 4
LETTERS: Final = "abcdefghij"


def _swapped(symbols: str) -> str:
    return "".join(symbols[i + 1] + symbols[i] for i in range(0, len(symbols), 2))


def _later(symbol: str, by: int) -> str:
    """Returns the letter ``by`` places on; a follows j."""
    return LETTERS[(LETTERS.index(symbol) + by) % len(LETTERS)]


def _running_sums(symbols: str) -> str:
    return "".join(accumulate(symbols, lambda total, symbol: _later(total, LETTERS.index(symbol))))


def _added(symbols: str) -> str:
    """Returns a number of three digits plus one of one digit, in four digits, the last one first, as carries run."""
    first, second, third, added = (LETTERS.index(symbol) for symbol in symbols)
    return "".join(LETTERS[int(digit)] for digit in reversed(f"{100 * first + 10 * second + third + added:04d}"))


@dataclass(frozen=True)
class SkillTask:
    """One skill as a ``node.tasks.task.Task``; a reward is 1 for the exact answer, else 0."""

    name: str
    tag: str
    symbols: str
    answer: Callable[[str], str] = field(repr=False)
    version: int = 1
    max_new_tokens: int = LENGTH + 2

    @property
    def config_hash(self) -> bytes:
        return config_hash_of({"name": self.name, "tag": self.tag, "symbols": self.symbols, "length": LENGTH})

    def ref(self, seed: int) -> PromptRef:
        return PromptRef(self.name, self.version, self.config_hash, seed % SEEDS)

    def prompt(self, ref: PromptRef) -> Prompt:
        """Returns the prompt of ``ref``. Raises ``MalformedError`` for a reference that this task does not have."""
        check_ref(self, ref, SEEDS)
        symbols = "".join(Random(f"{self.name} {ref.seed}").choices(self.symbols, k=LENGTH))
        return Prompt(ref, f"{self.tag}{symbols}=", self.answer(symbols), {})

    def written(self, prompt: Prompt) -> str:
        """Returns the completion that teaches."""
        return str(prompt.answer)

    def rewards(self, prompt: Prompt, completions: Sequence[str]) -> list[float]:
        return [float(text == prompt.answer) for text in completions]


SKILLS: Final[Mapping[str, SkillTask]] = {
    task.name: task
    for task in (
        SkillTask("reverse", "R", LETTERS, lambda symbols: symbols[::-1]),
        SkillTask("rotate", "L", LETTERS, lambda symbols: symbols[1:] + symbols[0]),
        SkillTask("swap", "P", LETTERS, _swapped),
        SkillTask("halves", "H", LETTERS, lambda symbols: symbols[LENGTH // 2 :] + symbols[: LENGTH // 2]),
    )
}

HARDER: Final[Mapping[str, SkillTask]] = {
    task.name: task
    for task in (
        SkillTask("sorting", "S", LETTERS, lambda symbols: "".join(sorted(symbols))),
        SkillTask("running_sums", "U", LETTERS, _running_sums),
        SkillTask("two_steps", "B", LETTERS, lambda symbols: "".join(_later(s, 1) for s in reversed(symbols))),
        SkillTask("addition", "A", LETTERS, _added),
    )
}
EIGHT_SKILLS: Final[Mapping[str, SkillTask]] = {**SKILLS, **HARDER}

COPY: Final = SkillTask("copy", "C", LETTERS, lambda symbols: symbols)


# The same skills with free text before the answer, as models that reason write it


ANSWER_MARK: Final = ">"
Dialect = Callable[[str], str]  # the answer's letters → free text before it
DIALECTS: Final[tuple[Dialect, ...]] = (
    lambda letters: "get " + ",".join(letters) + " so",
    lambda letters: " then ".join(letters) + "!",
)
WORDS: Final = "".join(sorted({*"abcdefghijklmnopqrstuvwxyz ,.!", *REMARK.format(answer=ANSWER_MARK)}))


@dataclass(frozen=True)
class ScratchPadTask(SkillTask):
    """A skill whose answer follows ``ANSWER_MARK``, after any text: only what follows the last mark is scored. What
    teaches is written in ``dialect``, which is no part of the task: unlike nodes write it unlike."""

    dialect: Dialect = field(default=DIALECTS[0], repr=False, kw_only=True)
    max_new_tokens: int = 48

    def written(self, prompt: Prompt) -> str:
        return f"{self.dialect(str(prompt.answer))}{ANSWER_MARK}{prompt.answer}"

    def rewards(self, prompt: Prompt, completions: Sequence[str]) -> list[float]:
        return [float(text.rpartition(ANSWER_MARK)[1:] == (ANSWER_MARK, prompt.answer)) for text in completions]


def scratch_pad_tasks(dialect: Dialect = DIALECTS[0]) -> Mapping[str, ScratchPadTask]:
    return {
        f"pad_{name}": ScratchPadTask(f"pad_{name}", task.tag, task.symbols, task.answer, dialect=dialect)
        for name, task in SKILLS.items()
    }


def alphabet_of(skills: Mapping[str, SkillTask]) -> str:
    return "".join(sorted({*LETTERS, "=", COPY.tag, *(task.tag for task in skills.values())}))
