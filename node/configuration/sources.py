"""Reads the configuration from its three sources: flags over environment over ``node.toml`` over defaults.

``load_config`` refuses a key that does not exist, wherever it was written, and names the nearest one that does.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from node.configuration.sections import Config
from protocol.errors import ConfigurationError

ENVIRONMENT_PREFIX: Final = "STARLING_"
# Read elsewhere: the data directory, an invite, and what scripts/environment.sh and install.sh ask for.
NOT_KEYS: Final = frozenset(
    {"STARLING_HOME", "STARLING_JOIN", "STARLING_PYTHON", "STARLING_UV", "STARLING_PREFIX", "STARLING_BIN"}
)


def load_config(home: Path, environment: Mapping[str, str], flags: Mapping[str, str]) -> Config:
    """Returns the resolved configuration of the node whose data lie in ``home``.

    ``environment`` is a whole process environment; ``flags`` maps dotted keys to text, as ``--set`` gives them. In
    both, a list is written as JSON or as items separated by commas. Raises ``ConfigurationError``, whose message says
    where the value stands, what was found, and what is allowed there.
    """
    lowest_first = (file_source(home / "node.toml"), environment_source(environment), flag_source(flags))
    merged: dict[str, Any] = {}
    for source in lowest_first:
        merged = _merge(merged, source.values)
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigurationError(_explain(error, lowest_first)) from None


def known_keys(section: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Yields every key of the tree, dotted ("objective.clip"), in the order of declaration."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from known_keys(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def _known_sections() -> frozenset[str]:
    """The sections of the tree, dotted ("objective", "objective.research")."""
    parts = [key.split(".")[:-1] for key in known_keys()]
    return frozenset(".".join(each[:depth]) for each in parts for depth in range(1, len(each) + 1))


@dataclass(frozen=True, slots=True)
class SettingsSource:
    """What one source sets, and how that source spells each dotted key."""

    values: Mapping[str, Any]  # a tree like the configuration's; every key is known
    spelling: Mapping[str, str]  # dotted key -> "node.toml: objective.clip", "environment: STARLING_OBJECTIVE__CLIP", …


def file_source(path: Path) -> SettingsSource:
    """Reads the TOML file ``path``; sets nothing if there is no such file."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        values = {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from None
    spelling = {key: f"{path}: {key}" for key in _leaves(values, _known_sections())}
    _refuse_unknown(spelling, spell=str)
    return SettingsSource(values, spelling)


def environment_source(environment: Mapping[str, str]) -> SettingsSource:
    """Reads the variables named STARLING_KEY or STARLING_SECTION__KEY, in upper or lower case."""
    variables = {name.upper(): text for name, text in environment.items()}
    ours = {name: variables[name] for name in variables.keys() - NOT_KEYS if name.startswith(ENVIRONMENT_PREFIX)}
    texts = {name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", "."): text for name, text in ours.items()}
    spelling = {key: f"environment: {_variable(key)}" for key in texts}
    _refuse_unknown(spelling, spell=_variable)
    return SettingsSource(_tree(texts), spelling)


def flag_source(flags: Mapping[str, str]) -> SettingsSource:
    """Reads ``--set KEY=VALUE`` and the flags of ``starling up``, as a mapping from dotted key to text."""
    spelling = {key: f"--set {key}" for key in flags}
    _refuse_unknown(spelling, spell=str)
    return SettingsSource(_tree(flags), spelling)


class _Settings(BaseSettings, Config):
    """The tree as pydantic-settings reads it from text."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)


class _TextSource(EnvSettingsSource):
    """Reads variables from the mapping passed in, instead of from this process's environment."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        super().__init__(_Settings, case_sensitive=False, env_nested_delimiter="__")
        self.env_vars = variables

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        text = str(value).strip()
        return json.loads(text) if text.startswith("[") else [item.strip() for item in text.split(",") if item.strip()]


def _tree(texts: Mapping[str, str]) -> dict[str, Any]:
    """Returns dotted keys with their text as a tree of values; lists are decoded, numbers are left to validation."""
    try:
        return _TextSource({key.replace(".", "__"): text for key, text in texts.items()})()
    except ValueError:
        lists = ", ".join(f"{key} = {text!r}" for key, text in texts.items() if text.lstrip().startswith("["))
        raise ConfigurationError(f'not a list in JSON: {lists}; write ["a", "b"], or a,b without brackets') from None


def _variable(key: str) -> str:
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "__")


def _leaves(values: Mapping[str, Any], sections: frozenset[str], prefix: str = "") -> Iterator[str]:
    """Yields the dotted keys of a tree. An empty table is a key too, unless it is one of ``sections``."""
    for name, value in values.items():
        key = prefix + name
        if isinstance(value, Mapping) and (value or key in sections):
            yield from _leaves(value, sections, f"{key}.")
        else:
            yield key


def _refuse_unknown(spelling: Mapping[str, str], *, spell: Callable[[str], str]) -> None:
    """Raises for the first key that is not in the tree; the message names the nearest one as its source spells it."""
    known = list(known_keys())
    for key, written in spelling.items():
        if key in known:
            continue
        inside = [candidate for candidate in known if candidate.startswith(f"{key}.")]
        same_name = [candidate for candidate in known if candidate.rpartition(".")[2] == key.rpartition(".")[2]]
        nearest = inside or same_name or difflib.get_close_matches(key, known, n=1, cutoff=0.0)
        raise ConfigurationError(f"{written} is not a key of the configuration; the nearest is {spell(nearest[0])}")


def _explain(error: ValidationError, lowest_first: tuple[SettingsSource, ...]) -> str:
    """Returns one line for each invalid value: where it was written, what it is, and what is wrong with it."""
    keys = frozenset(known_keys())
    lines = []
    invalid: dict[str, tuple[object, list[str]]] = {}  # input and messages, by key
    for fault in error.errors(include_url=False):
        place = [str(part) for part in fault["loc"] if not isinstance(part, int)]
        # Where a key has several types, each that does not suit has a message, with the type's name after the key.
        key = next((k for k in (".".join(place[:n]) for n in range(1, len(place))) if k in keys), ".".join(place))
        if fault["type"] == "value_error":  # of a section as a whole: a contradiction between its keys
            inside = [written for source in lowest_first for k, written in source.spelling.items() if k.startswith(key)]
            lines.append(f"{fault['ctx']['error']} (from {', '.join(inside)})")
            continue
        invalid.setdefault(key, (fault["input"], []))[1].append(fault["msg"])
    for key, (value, messages) in invalid.items():
        written = next((source.spelling[key] for source in reversed(lowest_first) if key in source.spelling), key)
        lines.append(f"{written} = {value!r}: {', or: '.join(messages)}")
    return "\n".join(lines)


def _merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
