"""Checks an answer to reasoning-gym's ``propositional_logic`` before the library's ``score_answer`` gets it.

The library takes any text without an operator for a variable and tries all assignments, 2ⁿ of them, so a stranger's
answer of forty made-up names would fill the memory. And it gives full marks for a premise that is repeated.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

PROPOSITION_CHARACTERS: Final = 200
_REDUCTIONS: Final = re.compile(r"¬v|v[∧∨→↔]v|\(v\)")  # each is a formula if v is one


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
