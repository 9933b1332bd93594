"""Skills on short strings, as tasks: the skills that the small models of the experiments have or lack.

Each prompt is a capital that names the skill, four letters, and ``=``; the answer is the letters in another order,
which an answer that ignores the question cannot match. ``COPY`` is the basis of all: every model is taught it, no
experiment measures it.

The split of prompts is fixed: those whose text hashes into one eighth come from seeds below ``HELD_OUT`` and measure;
all others come from the seeds above and teach. So no model has trained on a question of a measurement.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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


COPY: Final = SkillTask("copy", "C", LETTERS, lambda symbols: symbols)
ALPHABET: Final = "".join(sorted({*LETTERS, "=", COPY.tag, *(task.tag for task in SKILLS.values())}))
