"""Whose settings are shown: those of the node that runs in a data directory, or those that a start would use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from node.api.node_client import ask_settings
from node.api.types import SettingsAnswer
from node.configuration.sources import known_keys, load_config, resolve
from node.home import Home, is_locked
from protocol.errors import TransportError

DIFFERENCES_NAMED = 8


@dataclass(frozen=True, slots=True)
class ShownSettings:
    config: Mapping[str, Any]
    origin: str  # a sentence that says whose they are
    differing: tuple[str, ...] = ()  # keys that a start from this shell would set otherwise

    def lines(self) -> Iterator[str]:
        yield self.origin
        if self.differing:
            yield f"A start from this shell would differ in {some_of(self.differing)}"


def some_of(keys: Sequence[str]) -> str:
    more = len(keys) - DIFFERENCES_NAMED
    return ", ".join(keys[:DIFFERENCES_NAMED]) + (f" and {more} more" if more > 0 else "")


def settings_of(
    home: Home, environment: Mapping[str, str], flags: Mapping[str, str], *, of_start: bool = False
) -> ShownSettings:
    """Returns the settings of the node that runs in ``home``, asked over its socket; those of a start where none runs,
    where flags are given, and for ``of_start``. Raises ``ConfigurationError`` for a start that cannot be."""
    if flags or of_start:
        config = load_config(home.path, environment, flags).model_dump(mode="json")
        return ShownSettings(config, f"What a start in {home.path} would use")
    running, failure = running_settings(home)
    if running is not None:
        started = resolve(home.path, environment, {}).config.model_dump(mode="json")
        return ShownSettings(
            running.config,
            f"Settings of the node that runs in {home.path} (process {running.pid})",
            tuple(differing_keys(running.config, started)),
        )
    config = load_config(home.path, environment, {}).model_dump(mode="json")
    why = "no node runs there" if failure is None else f"the node that runs there does not answer: {failure}"
    return ShownSettings(config, f"What a start in {home.path} would use; {why}")


def running_settings(home: Home) -> tuple[SettingsAnswer | None, str | None]:
    """Returns the settings of the node that runs in ``home``, and why there are none although one runs."""
    if not is_locked(home):
        return None, None
    try:
        return ask_settings(home), None
    except TransportError as error:
        return None, str(error)


def differing_keys(running: Mapping[str, Any], started: Mapping[str, Any]) -> Iterator[str]:
    """Yields the dotted keys that two configurations set differently. A name that a start makes up is not counted."""
    for key in known_keys():
        if _value(running, key) != _value(started, key) and not (key == "name" and not _value(started, key)):
            yield key


def _value(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
