"""Skills on short strings, as tasks: the skills that the small models of the experiments have or lack.

Each prompt is a capital that names the skill, four letters, and ``=``. The answer to one of ``SKILLS`` is the letters
in another order; those of ``HARDER`` have to be computed, the letters from a on standing for the digits. An answer that
ignores the question cannot match. ``COPY`` is the basis of all: every model is taught it, no experiment measures it.

The split of prompts is fixed: those whose text hashes into one eighth come from seeds below ``HELD_OUT`` and measure;
all others come from the seeds above and teach. So no model has trained on a question of a measurement.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Final

from node.tasks.task import Prompt, check_ref
from protocol.messages import PromptRef

SEEDS: Final = 1 << 31
HELD_OUT: Final = 100_000  # seeds below measure, seeds from here on teach; as for the built-in models
HELD_OUT_PARTS: Final = 8  # one text of this many is held out
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
        return hashlib.sha256(f"{self.name} {self.tag} {self.symbols} {LENGTH} {HELD_OUT_PARTS}".encode()).digest()[:16]

    def ref(self, seed: int) -> PromptRef:
        return PromptRef(self.name, self.version, self.config_hash, seed % SEEDS)

    def prompt(self, ref: PromptRef) -> Prompt:
        """Returns the prompt of ``ref``. Raises ``MalformedError`` for a reference that this task does not have."""
        check_ref(self, ref, SEEDS)
        rng = Random(f"{self.name} {ref.seed}")
        while True:
            symbols = "".join(rng.choices(self.symbols, k=LENGTH))
            if is_held_out(symbols) == (ref.seed < HELD_OUT):
                return Prompt(ref, f"{self.tag}{symbols}=", self.answer(symbols), {})

    def rewards(self, prompt: Prompt, completions: Sequence[str]) -> list[float]:
        return [float(text == prompt.answer) for text in completions]


def is_held_out(symbols: str) -> bool:
    return zlib.crc32(symbols.encode()) % HELD_OUT_PARTS == 0


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


def alphabet_of(skills: Mapping[str, SkillTask]) -> str:
    return "".join(sorted({*LETTERS, "=", COPY.tag, *(task.tag for task in skills.values())}))
