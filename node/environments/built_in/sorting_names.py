"""Sort names by the alphabet over several turns: each turn adds some, and the answer is the whole list again.

The reward is the share of the turns whose list was right. A wrong list is not corrected: the model has to hold its own.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Sequence
from typing import Final

from node.environments.environment import Turn
from node.environments.seeded import SeededEnvironment

_NAMES: Final = (
    "Ada Alma Amir Anna Aron Bela Ben Bruno Cara Carl Cleo Cora Dan Dana Dora Eli Ella Emil Enno Eva Finn Fynn "
    "Gina Greta Gus Hana Hugo Ida Igor Ines Ivo Jana Jon Jule Kai Kira Lars Lea Levi Lina Luca Mara Max Mia Milo "
    "Nils Nina Noa Nora Olga Omar Otto Paul Pia Quin Rita Rosa Ruth Sam Sara Siri Tara Tess Theo Tim Tom Udo Uma "
    "Vera Vito Wim Xenia Yara Yuri Zoe"
)
NAMES: Final = tuple(_NAMES.split())
_NAME: Final = re.compile(r"[A-Za-z]+")


def sorting_names(name: str, first: int, more: int, turns: int, *, brief: bool = False) -> SeededEnvironment:
    """``first`` names, and ``more`` in each of the ``turns`` after the first. ``brief``: single letters."""

    def episode(draws: random.Random) -> Sorting:
        names = draws.sample(string.ascii_lowercase if brief else NAMES, first + more * (turns - 1))
        ends = [first + more * turn for turn in range(turns)]
        parts = [names[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        return Sorting(parts, brief=brief)

    def is_canonical(action: str) -> bool:
        said = list(action) if brief else action.split(", ")
        return bool(said) and said == sorted(set(said)) and set(said) <= set(string.ascii_lowercase if brief else NAMES)

    tokens = 8 if brief else 16 * (first + more * turns)
    return SeededEnvironment(
        name, episode, turns, tokens, 500, is_canonical=is_canonical,
        config={"first": first, "more": more, "brief": brief, "names": list(NAMES)},
    )  # fmt: skip


class Sorting:
    def __init__(self, parts: Sequence[Sequence[str]], *, brief: bool) -> None:
        self._parts, self._brief = parts, brief
        self._turn, self._right = 0, 0

    def observation(self) -> str:
        if self._brief:
            return f"sort {''.join(self._parts[0])}:"
        return (
            f"Sort these names by the alphabet, and answer with the list alone, separated by commas: "
            f"{', '.join(self._parts[0])}"
        )

    def act(self, text: str) -> Turn:
        said = list(text.strip()) if self._brief else [each.lower() for each in _NAME.findall(text)]
        self._right += said == [each.lower() for each in self._sorted(self._turn)]
        self._turn += 1
        if self._turn == len(self._parts):
            return Turn("", done=True)
        added = self._parts[self._turn]
        return Turn(f"+{''.join(added)}:" if self._brief else f"Add {', '.join(added)}: the whole list, sorted.")

    def reward(self) -> float:
        return self._right / len(self._parts)

    def example(self) -> Sequence[str]:
        return [("" if self._brief else ", ").join(self._sorted(turn)) for turn in range(len(self._parts))]

    def _sorted(self, turn: int) -> list[str]:
        return sorted(each for part in self._parts[: turn + 1] for each in part)
