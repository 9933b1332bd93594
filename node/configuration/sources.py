"""Reads the configuration from its sources: flags over environment over ``node.toml`` over what the data directory
remembers of its run (``remembered``) over defaults.

``resolve`` names every key that does not exist, wherever it was written, with the nearest one that does, and every
value that is not allowed; ``load_config`` refuses them all at once.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from node.checkpoints.checkpoint_files import CONFIG
from node.configuration.remembered import RememberedRun, remembered_run, settings_to_keep
from node.configuration.sections import Config
from protocol.errors import ConfigurationError

ENVIRONMENT_PREFIX: Final = "STARLING_"
OPEN_TABLES: Final = ("tasks.reasoning_gym.",)  # the keys below them are checked where they are read
# Read elsewhere: the data directory, an invite, and what scripts/environment.sh and install.sh ask for.
NOT_KEYS: Final = frozenset(
    {
        "STARLING_HOME",
        "STARLING_JOIN",
        "STARLING_PYTHON",
        "STARLING_UV",
        "STARLING_PREFIX",
        "STARLING_BIN",
        "STARLING_ENGINES",
    }
)

NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})
MOVED: Final = {"swarm.upload_bytes_per_second": ("machine.max_upload", '"10 Mbit/s"')}  # former keys
GONE: Final[Mapping[str, frozenset[str]]] = MappingProxyType(  # former keys, without values, and former values of keys
    {
        "objective.research.proximal_window": frozenset(),
        "objective.research.ess_learning_rate": frozenset(),
        "objective.research.advantage": frozenset({"min_variance"}),
        "objective.correction": frozenset({"icepop", "masked_is", "decoupled_ppo", "ppo_ewma"}),
    }
)
WHY_GONE: Final = "nothing showed it to be better than what is left (docs/papers.md, “Tried and rejected”)"


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """The configuration of a data directory, as far as it could be read."""

    config: Config  # where a value cannot be used, with its default
    problems: tuple[str, ...]  # each says where a value stands, what was found, and what is allowed there
    spelling: Mapping[str, str]  # where the value of a dotted key was written; a key that has its default is not there
    run: RememberedRun | None  # what the data directory remembers


def load_config(home: Path, environment: Mapping[str, str], flags: Mapping[str, str]) -> Config:
    """Returns the resolved configuration of the node whose data lie in ``home``.

    ``environment`` is a whole process environment; ``flags`` maps dotted keys to text, as ``--set`` gives them. In
    both, a list is written as JSON or as items separated by commas. Raises ``ConfigurationError``, whose message says
    where each wrong value stands, what was found, and what is allowed there.
    """
    resolved = resolve(home, environment, flags)
    if resolved.problems:
        raise ConfigurationError("\n".join(resolved.problems))
    return resolved.config


def resolve(
    home: Path,
    environment: Mapping[str, str],
    flags: Mapping[str, str],
    options: Mapping[str, str] = NO_OPTIONS,
    resumed: Path | None = None,
) -> ResolvedConfig:
    """As ``load_config``, but with everything that is wrong as data, so that what is right can be examined too.

    ``options`` names the option that set a key of ``flags``, where that was not ``--set``. ``resumed`` is the
    checkpoint from which a start is to go on, where that is not the newest.
    """
    said = (file_source(home / "node.toml"), environment_source(environment), flag_source(flags, options))
    run = remembered_run(home, resumed)
    below = _remembered_source(run, frozenset(key for source in said for key in source.spelling))
    lowest_first = (below, *said)
    merged: dict[str, Any] = {}
    for source in lowest_first:
        merged = _merge(merged, source.values)
    problems = [problem for source in lowest_first for problem in source.problems]
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        problems += _explain(error, lowest_first)
        config = _without_faults(merged, error)
    spelling = {key: written for source in lowest_first for key, written in source.spelling.items()}
    return ResolvedConfig(config, tuple(problems), spelling, run)


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
    problems: tuple[str, ...] = ()  # what is wrong with what it sets


def file_source(path: Path) -> SettingsSource:
    """Reads the TOML file ``path``; sets nothing if there is no such file."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return SettingsSource({}, {})
    except (OSError, UnicodeDecodeError) as error:
        return SettingsSource({}, {}, (f"{path} cannot be read: {error}",))
    except tomllib.TOMLDecodeError as error:
        return SettingsSource({}, {}, (f"{path} is not TOML: {error}",))
    spelling = {key: f"{path}: {key}" for key in _leaves(values, _known_sections())}
    unknown = _unknown(spelling, spell=str)
    return SettingsSource(
        _without(values, unknown), {k: w for k, w in spelling.items() if k not in unknown}, (*unknown.values(),)
    )


def environment_source(environment: Mapping[str, str]) -> SettingsSource:
    """Reads the variables named STARLING_KEY or STARLING_SECTION__KEY, in upper or lower case."""
    variables = {name.upper(): text for name, text in environment.items()}
    ours = {name: variables[name] for name in variables.keys() - NOT_KEYS if name.startswith(ENVIRONMENT_PREFIX)}
    texts = {name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", "."): text for name, text in ours.items()}
    return _text_source(texts, {key: f"environment: {_variable(key)}" for key in texts}, spell=_variable)


def flag_source(flags: Mapping[str, str], options: Mapping[str, str] = NO_OPTIONS) -> SettingsSource:
    """Reads ``--set KEY=VALUE`` and the flags of ``starling up``, as a mapping from dotted key to text. ``options`` has
    the keys that an option of their own set, such as ``--model``."""
    return _text_source(flags, {key: options.get(key, f"--set {key}") for key in flags}, spell=str)


def _remembered_source(run: RememberedRun | None, said: frozenset[str]) -> SettingsSource:
    if run is None:
        return SettingsSource({}, {})
    kept = settings_to_keep(run, said)
    values: dict[str, Any] = {}
    for key, value in kept.items():
        *sections, name = key.split(".")
        values = _merge(values, _nested(sections, {name: value}))
    return SettingsSource(values, {key: f"{run.path / CONFIG}: {key}" for key in kept})


def _text_source(
    texts: Mapping[str, str], spelling: Mapping[str, str], *, spell: Callable[[str], str]
) -> SettingsSource:
    unknown = _unknown(spelling, spell=spell)
    known = {key: text for key, text in texts.items() if key not in unknown}
    problems = list(unknown.values())
    try:
        values = _tree(known)
    except ValueError:
        broken = [key for key, text in known.items() if _is_broken_list(text)]
        problems += [
            f'{spelling[key]} = {known[key]!r} is not a list in JSON; write ["a", "b"], or a,b without brackets'
            for key in broken
        ]
        known = {key: text for key, text in known.items() if key not in broken}
        values = _tree(known)
    return SettingsSource(values, {key: spelling[key] for key in known}, tuple(problems))


def _is_broken_list(text: str) -> bool:
    if not text.lstrip().startswith("["):
        return False
    try:
        json.loads(text)
    except ValueError:
        return True
    return False


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
    """Returns dotted keys with their text as a tree of values; lists are decoded, numbers are left to validation.
    Raises ``ValueError`` for a broken list."""
    return _TextSource({key.replace(".", "__"): text for key, text in texts.items()})()


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


def _unknown(spelling: Mapping[str, str], *, spell: Callable[[str], str]) -> dict[str, str]:
    """Returns a message for each key that is not in the tree: what became of it, or the nearest one as its source
    spells it."""
    known = list(known_keys())
    messages = {}
    for key, written in spelling.items():
        if key in known or key.startswith(OPEN_TABLES):
            continue
        if key in MOVED:
            place, example = MOVED[key]
            messages[key] = f"{written} is now {spell(place)}, in words: write {example}"
            continue
        if key in GONE:
            messages[key] = f"{written} is gone: {WHY_GONE}; leave the key out"
            continue
        inside = [candidate for candidate in known if candidate.startswith(f"{key}.")]
        same_name = [candidate for candidate in known if candidate.rpartition(".")[2] == key.rpartition(".")[2]]
        nearest = inside or same_name or difflib.get_close_matches(key, known, n=1, cutoff=0.0)
        messages[key] = f"{written} is not a key of the configuration; the nearest is {spell(nearest[0])}"
    return messages


def _explain(error: ValidationError, lowest_first: Sequence[SettingsSource]) -> list[str]:
    """Returns one line for each invalid value: where it was written, what it is, and what is wrong with it."""
    keys = frozenset(known_keys())
    lines = []
    invalid: dict[str, tuple[object, list[str]]] = {}  # input and messages, by key
    for fault in error.errors(include_url=False):
        key = _key_of(fault["loc"], keys)
        if fault["type"] == "value_error":  # of a section as a whole: a contradiction between its keys
            inside = [written for source in lowest_first for k, written in source.spelling.items() if k.startswith(key)]
            lines.append(f"{fault['ctx']['error']} (from {', '.join(inside)})")
            continue
        invalid.setdefault(key, (fault["input"], []))[1].append(fault["msg"])
    for key, (value, messages) in invalid.items():
        written = next((source.spelling[key] for source in reversed(lowest_first) if key in source.spelling), key)
        gone = f"it is gone: {WHY_GONE}. " if str(value) in GONE.get(key, ()) else ""
        lines.append(f"{written} = {value!r}: {gone}{', or: '.join(messages)}")
    return lines


def _key_of(place: Sequence[int | str], keys: frozenset[str]) -> str:
    """Returns the dotted key, or the section, that a fault is about. Where a key has several types, each that does not
    suit has a message, with the type's name after the key."""
    parts = [str(part) for part in place if not isinstance(part, int)]
    return next((k for k in (".".join(parts[:n]) for n in range(1, len(parts))) if k in keys), ".".join(parts))


def _without_faults(merged: Mapping[str, Any], error: ValidationError) -> Config:
    """Returns the configuration without the values, and contradicting sections, that ``error`` names."""
    keys = frozenset(known_keys())
    faulty = {_key_of(fault["loc"], keys) for fault in error.errors(include_url=False)}
    try:
        return Config.model_validate(_without(merged, faulty))
    except ValidationError:  # what is left contradicts itself
        return Config()


def _without(tree: Mapping[str, Any], keys: Collection[str], prefix: str = "") -> dict[str, Any]:
    """Returns the tree without these dotted keys and sections, and without sections of which nothing is left."""
    kept = {}
    for name, value in tree.items():
        if prefix + name in keys:
            continue
        left = _without(value, keys, f"{prefix}{name}.") if isinstance(value, Mapping) else value
        if left or not value:
            kept[name] = left
    return kept


def _nested(sections: Sequence[str], values: dict[str, Any]) -> dict[str, Any]:
    for section in reversed(sections):
        values = {section: values}
    return values


def _merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
