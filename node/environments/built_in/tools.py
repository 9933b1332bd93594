"""Two pairs of tools with questions that need them: a calculator, and a store of keys and values.

``calculator``: the sum of products of numbers that are too long to multiply in one's head. ``key_value``: a value is
the name of another key, and what is asked is the value at the end of a chain; with ``swaps`` two values are to be
exchanged first, which is half of the reward. The answer is the other half, or all of it.
"""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from node.environments.adapters.tools import tool_environment
from node.environments.seeded import SeededEnvironment

MOST_DIGITS: Final = 30
MOST_CHARACTERS: Final = 40
MOST_KEYS: Final = 100


class Calculator:
    def reset(self, **row: Any) -> None:
        self.right = str(sum(a * b for a, b in row["pairs"]))

    def add(self, a: int, b: int) -> int:
        """Returns a + b."""
        return _bounded(a) + _bounded(b)

    def multiply(self, a: int, b: int) -> int:
        """Returns a times b."""
        return _bounded(a) * _bounded(b)


class BriefCalculator(Calculator):
    def m(self, a: int, b: int) -> int:
        return self.multiply(a, b)


class Store:
    def reset(self, **row: Any) -> None:
        self.values, self.right, self.wanted = dict(row["values"]), row["right"], row["wanted"]

    def get(self, key: str) -> str:
        """Returns the value of a key."""
        return str(self.values.get(key, "nothing"))

    def put(self, key: str, value: str) -> str:
        """Gives a key a value."""
        if max(len(key), len(value)) > MOST_CHARACTERS or len(self.values) >= MOST_KEYS:
            raise ValueError(f"at most {MOST_CHARACTERS} characters and {MOST_KEYS} keys")
        self.values[key] = value
        return "done"


class BriefStore(Store):
    def g(self, key: str) -> str:
        return self.get(key)


def calculator(name: str, digits: int, terms: int, *, brief: bool = False) -> SeededEnvironment:
    """``terms`` products of two numbers of ``digits`` digits."""

    def row(draws: random.Random) -> Mapping[str, Any]:
        pairs = [[draws.randrange(10 ** (digits - 1), 10**digits) for _ in "ab"] for _ in range(terms)]
        asked = " + ".join(f"{a} * {b}" for a, b in pairs)
        return {"pairs": pairs, "prompt": f"{asked}:" if brief else f"What is {asked}? Answer with the number alone."}

    def example(row: Mapping[str, Any]) -> Sequence[str]:
        said, total = list[str](), 0
        for number, (a, b) in enumerate(row["pairs"]):
            said.append(f"m {a} {b}" if brief else _call("multiply", a=a, b=b))
            said += [_call("add", a=total, b=a * b)] if number else []
            total += a * b
        return [*said, str(total)]

    number = rf"\d{{1,{MOST_DIGITS}}}"
    called = rf"m {number} {number}" if brief else _written("add|multiply", a=number, b=number)
    return tool_environment(
        name, BriefCalculator if brief else Calculator, row, lambda made, answer: float(answer == made.right),
        max_turns=2 * terms + 2, max_new_tokens=8 * digits if brief else 128, example=example, tells_tools=not brief,
        config={"digits": digits, "terms": terms}, is_canonical=_one_of(called, number),
    )  # fmt: skip


def key_value(name: str, keys: int, steps: int, *, swaps: bool = False, brief: bool = False) -> SeededEnvironment:
    """``keys`` keys; the answer is ``steps`` values further."""

    def row(draws: random.Random) -> Mapping[str, Any]:
        names = _names(draws, keys, 2 if brief else 4)
        values = {key: draws.choice([each for each in names if each != key]) for key in names}
        first, second, begin = *draws.sample(names, 2), draws.choice(names)
        wanted = values | ({first: values[second], second: values[first]} if swaps else {})
        right = begin
        for _ in range(steps):
            right = wanted[right]
        told = f"The value of {begin} is a key, whose value is a key again. Which do you read at step {steps}? "
        if swaps:
            told = f"First exchange the values of {first} and {second}. {told}"
        prompt = f"{begin}{steps}:" if brief else f"{told}Answer with it alone."
        return {"prompt": prompt, "values": values, "wanted": wanted, "right": right, "way": [first, second, begin]}

    def example(row: Mapping[str, Any]) -> Sequence[str]:
        first, second, at = row["way"]
        said = [_call("put", key=key, value=row["wanted"][key]) for key in (first, second)] if swaps else []
        if swaps:
            said = [_call("get", key=first), _call("get", key=second), *said]
        for _ in range(steps):
            said.append(f"g {at}" if brief else _call("get", key=at))
            at = row["wanted"][at]
        return [*said, row["right"]]

    def reward(made: Store, answer: str) -> float:
        right = float(answer == made.right)
        return (right + float(made.values == made.wanted)) / 2 if swaps else right

    key = f"[a-z]{{{2 if brief else 4}}}"
    called = (
        [f"g {key}"] if brief else [_written("get", key=f'"{key}"'), _written("put", key=f'"{key}"', value=f'"{key}"')]
    )
    return tool_environment(
        name, BriefStore if brief else Store, row, reward, max_turns=steps + 2 + 4 * swaps,
        max_new_tokens=6 if brief else 128, example=example, tells_tools=not brief,
        config={"keys": keys, "steps": steps, "swaps": swaps}, is_canonical=_one_of(*called, key),
    )  # fmt: skip


def _names(draws: random.Random, keys: int, length: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < keys:
        found["".join(draws.choices(string.ascii_lowercase, k=length))] = None
    return list(found)


def _call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def _written(name: str, **arguments: str) -> str:
    """Returns the pattern of a call as ``_call`` writes it; ``name`` and arguments are patterns."""
    given = ", ".join(f'"{key}": {value}' for key, value in arguments.items())
    return rf'\{{"name": "(?:{name})", "arguments": \{{{given}\}}\}}'


def _one_of(*patterns: str) -> Callable[[str], bool]:
    form = re.compile("|".join(patterns))
    return lambda action: form.fullmatch(action) is not None


def _bounded(number: int) -> int:
    if abs(number) >= 10**MOST_DIGITS:
        raise ValueError(f"a number of more than {MOST_DIGITS} digits")
    return number
