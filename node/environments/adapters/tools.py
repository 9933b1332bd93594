"""Environments whose public methods are tools, as TRL's ``environment_factory`` has them.

    class Store:
        def reset(self, **columns) -> str | None   # a row's columns; what it returns is said after the prompt
        def get(self, key: str) -> str             # a tool: its name, types and docstring are told to the model

The model calls tools in the format of its chat template. These are read: JSON with ``name``, and ``arguments`` or
``parameters``, alone, in a list, or between other text such as ``<tool_call>`` (Hermes, Qwen), ``[TOOL_CALLS]``
(Mistral) or ``<|python_tag|>`` (Llama); and for small models ``NAME VALUE VALUE``. What calls no tool is the answer,
which ends the episode. A call that fails is answered with its error.
"""

from __future__ import annotations

import inspect
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, get_type_hints

from node.environments.environment import Turn
from node.environments.seeded import SeededEnvironment

MOST_ACTION_CHARACTERS: Final = 8_000
MOST_CALLS: Final = 8  # in one action
MOST_TRIES: Final = 2 * MOST_CALLS  # brackets at which JSON may begin
_OPENING: Final = re.compile(r"[{[]")
_JSON_TYPES: Final[Mapping[type, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_ARGUMENT: Final = re.compile(r"\s*(\w+)(?: \([^)]*\))?: (.+)")


def tool_environment(
    name: str,
    make: Callable[[], Any],
    row: Callable[[random.Random], Mapping[str, Any]],
    reward: Callable[[Any, str], float],
    *,
    max_turns: int,
    max_new_tokens: int = 128,
    max_observation_bytes: int = 2_000,
    version: int = 1,
    config: Mapping[str, Any] | None = None,
    example: Callable[[Mapping[str, Any]], Sequence[str]] | None = None,
    tells_tools: bool = True,
    is_canonical: Callable[[str], bool] | None = None,
) -> SeededEnvironment:
    """Returns what ``make`` makes as an environment. ``row`` draws the columns that ``reset`` gets, of which ``prompt``
    is what is said first. ``reward`` says from 0 to 1 what the environment and the model's answer are worth; the answer
    is empty until there is one. ``example`` returns actions that go well for a row. With ``tells_tools`` false the
    prompt has to say what there is.

    Raises ``ValueError`` for a tool whose arguments are not text, numbers or truth values.
    """
    tools = tuple(schema(tool) for tool in _tools(make()).values()) if tells_tools else ()

    def episode(draws: random.Random) -> ToolEpisode:
        drawn = row(draws)
        return ToolEpisode(make(), drawn, reward, None if example is None else example(drawn))

    return SeededEnvironment(
        name,
        episode,
        max_turns,
        max_new_tokens,
        max_observation_bytes,
        version,
        dict(config or {}),
        tools,
        is_canonical,
    )


class ToolEpisode:
    def __init__(
        self,
        made: Any,
        row: Mapping[str, Any],
        reward: Callable[[Any, str], float],
        example: Sequence[str] | None = None,
    ) -> None:
        self._made, self._reward, self._example, self._answer = made, reward, example, ""
        said = made.reset(**row)
        self._first = row["prompt"] if said is None else f"{row['prompt']}{said}"
        self._tools = _tools(made)

    def observation(self) -> str:
        return str(self._first)

    def act(self, text: str) -> Turn:
        text = text[:MOST_ACTION_CHARACTERS]
        calls = list(self._calls(text))[:MOST_CALLS]
        if not calls:
            self._answer = text.strip()
            return Turn("", done=True)
        return Turn("\n".join(self._called(name, given) for name, given in calls))

    def reward(self) -> float:
        return self._reward(self._made, self._answer)

    def example(self) -> Sequence[str] | None:
        return self._example

    def _calls(self, text: str) -> Iterator[tuple[str, object]]:
        """Yields the calls that ``text`` makes, in order."""
        found = False
        for each in _json_values(text):
            for call in each if isinstance(each, list) else [each]:
                if isinstance(call, dict) and isinstance(call.get("name"), str):
                    found = True
                    yield call["name"], call.get("arguments", call.get("parameters", {}))
        name, *rest = text.split(maxsplit=1) or [""]
        if not found and name in self._tools:
            hints = _arguments(self._tools[name])
            words = rest[0].split(maxsplit=max(0, len(hints) - 1)) if rest else []
            yield name, {key: _read(word, kind) for (key, kind), word in zip(hints.items(), words, strict=False)}

    def _called(self, name: str, given: object) -> str:
        tool = self._tools.get(name)
        if tool is None:
            return f"error: there is no tool {name[:40]!r}, but {', '.join(self._tools)}"
        wanted = _arguments(tool)
        if not isinstance(given, dict) or given.keys() - wanted.keys():
            return f"error: {name} takes {', '.join(wanted) or 'nothing'}"
        for key, kind in wanted.items():
            if key in given and not _is(given[key], kind):
                return f"error: {key} is no {_JSON_TYPES[kind]}"
        try:
            return str(tool(**given))
        except Exception as error:  # noqa: BLE001 - a tool says by it what is wrong with a call
            return f"error: {error}" if str(error) else f"error: {type(error).__name__}"


def schema(tool: Callable[..., Any]) -> Mapping[str, Any]:
    """Returns a tool's description as chat templates take it: its arguments as JSON schema, its docstring."""
    text, _, arguments = (inspect.getdoc(tool) or "").partition("Args:")
    told = {found[1]: found[2] for line in arguments.split("\n") if (found := _ARGUMENT.fullmatch(line))}
    properties = {
        name: {"type": _JSON_TYPES[kind], **({"description": told[name]} if name in told else {})}
        for name, kind in _arguments(tool).items()
    }
    needed = [
        name for name, each in inspect.signature(tool).parameters.items() if each.default is inspect.Parameter.empty
    ]
    function = {
        "name": tool.__name__,
        "description": " ".join(text.partition("Returns:")[0].split()),
        "parameters": {"type": "object", "properties": properties, "required": needed},
    }
    return {"type": "function", "function": function}


def _tools(made: Any) -> dict[str, Callable[..., Any]]:
    """Returns the public methods of an environment but ``reset``, by name, in the order of their definition."""
    names = [name for each in reversed(type(made).__mro__[:-1]) for name in vars(each)]
    public = dict.fromkeys(name for name in names if not name.startswith("_") and name != "reset")
    return {name: method for name in public if inspect.ismethod(method := getattr(made, name))}


def _arguments(tool: Callable[..., Any]) -> dict[str, type]:
    hints = get_type_hints(tool)
    hints.pop("return", None)
    for name in inspect.signature(tool).parameters:
        if hints.get(name) not in _JSON_TYPES:
            raise ValueError(
                f"argument {name} of tool {tool.__name__} has type {hints.get(name)}, wanted str, int, float or bool"
            )
    return hints


def _json_values(text: str) -> Iterator[object]:
    """Yields the objects and lists of JSON in ``text``, outermost and from the left."""
    decoder, at = json.JSONDecoder(), 0
    for _ in range(MOST_TRIES):  # each may read the whole text
        found = _OPENING.search(text, at)
        if found is None:
            return
        try:
            value, at = decoder.raw_decode(text, found.start())
            yield value
        except (ValueError, RecursionError):
            at = found.end()


def _read(word: str, kind: type) -> object:
    """Returns a word as the type of an argument, or as it is."""
    try:
        return word if kind in (str, bool) else kind(word)
    except ValueError:
        return word


def _is(value: object, kind: type) -> bool:
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return isinstance(value, (int, float) if kind is float else kind)
