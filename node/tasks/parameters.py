"""Generators of reasoning-gym with the owner's parameters: the tables ``[tasks.reasoning_gym.GENERATOR]``.

A table's keys are the generator's own parameters, and two of ours: ``max_new_tokens``, and ``bare`` for the question
without an instruction, whose answer is the whole completion. What it does not name is the library's default. Questions
and scoring are those of the worded task over the same generator. The hash of the configuration is over all parameters
with their values, so that two nodes agree exactly if the same questions come out: whether a default was written down,
or a 1 as 1.0, makes no difference.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any, Final

from node.tasks.generators import AUDITED, COMPARED, REFUSED, create_dataset, default_parameters, parameters_of
from node.tasks.reasoning_sets import REASONING_TASKS
from node.tasks.worded import WordedTask
from protocol.errors import ConfigurationError

TABLE: Final = "tasks.reasoning_gym"
PREFIX: Final = "reasoning_gym:"
TOKENS: Final = "max_new_tokens"
BARE: Final = "bare"
PROBED_SEEDS: Final = range(4)
_WORDED: Final[Mapping[str, WordedTask]] = {task.generator: task for task in REASONING_TASKS}
GENERATORS: Final = tuple(sorted(AUDITED | COMPARED))


def generator_task(generator: str, given: Mapping[str, Any]) -> WordedTask:
    """Returns the task ``reasoning_gym:GENERATOR`` with the parameters ``given``. Imports the generator.

    Values may be text, as ``--set`` gives them. Raises ConfigurationError for a generator that is not in the audit, for
    a parameter that it lacks (with the nearest), and for values that it refuses or makes no question of.
    """
    key = f"{TABLE}.{generator}"
    if generator not in _WORDED:
        raise ConfigurationError(f"{key}: {_unknown(generator)}")
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{key} = {given!r}: wanted a table of parameters, such as [{key}]")
    usual = _WORDED[generator]
    defaults = default_parameters(generator)
    known = {**defaults, TOKENS: usual.max_new_tokens, BARE: False}
    values = {name: _value(f"{key}.{name}", name, value, known) for name, value in given.items()}
    tokens, bare = values.pop(TOKENS, usual.max_new_tokens), values.pop(BARE, False)
    if tokens < 1:
        raise ConfigurationError(f"{key}.{TOKENS} = {tokens}: at least 1")
    try:
        dataset = create_dataset(generator, seed=0, size=usual.seeds, **defaults | values)
    except Exception as error:  # a generator checks its parameters by assertions, or fails at its first question
        said = str(error) or type(error).__name__
        raise ConfigurationError(f"{key}: reasoning-gym refuses these parameters: {said}") from error
    task = WordedTask(
        f"{PREFIX}{generator}",
        1,
        tokens,
        generator,
        parameters_of(dataset.config),
        scoring=usual.scoring,
        seeds=usual.seeds,
        bare=bare,
    )
    for seed in PROBED_SEEDS:
        task.entry(seed)
    return task


def _unknown(generator: str) -> str:
    if generator in REFUSED:
        return f"this generator is not allowed: {REFUSED[generator]}"
    return f"there is no such generator; {_nearest(generator, GENERATORS)}"


def _nearest(name: str, known: Collection[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"the nearest is {found[0]!r}" if found else "it has none"


def _value(key: str, name: str, value: Any, defaults: Mapping[str, Any]) -> Any:
    """Returns ``value`` in the type of the parameter's default."""
    if name not in defaults:
        raise ConfigurationError(f"{key}: the generator has no such parameter; {_nearest(name, defaults)}")
    default = defaults[name]
    if isinstance(value, str) and not isinstance(default, str):
        value = _from_text(value, is_list=isinstance(default, (list, tuple)))
    match default:
        case Enum():
            fits, value = _member(type(default), value)
        case bool():
            fits = isinstance(value, bool)
        case int():
            fits = isinstance(value, int) and not isinstance(value, bool)
        case float():
            fits = isinstance(value, (int, float)) and not isinstance(value, bool)
            value = float(value) if fits else value
        case str():
            fits = isinstance(value, str)
        case list() | tuple():
            fits = isinstance(value, (list, tuple))
            if fits and default and isinstance(default[0], Enum):
                found = [_member(type(default[0]), each) for each in value]
                fits, value = all(is_one for is_one, _ in found), [member for _, member in found]
            value = type(default)(value) if fits else value
        case _:
            fits = True
    if not fits and isinstance(default, Enum):
        choices = ", ".join(repr(choice.value) for choice in type(default))
        raise ConfigurationError(f"{key} = {value!r}: wanted one of {choices}")
    if not fits:
        raise ConfigurationError(f"{key} = {value!r}: wanted the type of its default, {default!r}")
    return value


def _member(choices: type[Enum], value: Any) -> tuple[bool, Any]:
    """Returns whether ``value`` is one of the choices, and that member."""
    members = {choice.value: choice for choice in choices}
    return (True, members[value]) if isinstance(value, str) and value in members else (False, value)


def _from_text(text: str, *, is_list: bool) -> Any:
    """Returns what ``text`` writes in JSON; for a list also items between commas. Other text stays text."""
    try:
        return json.loads(text)
    except ValueError:
        return [_from_text(item.strip(), is_list=False) for item in text.split(",")] if is_list else text
