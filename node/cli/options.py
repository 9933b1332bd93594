"""Options that several verbs share, and how verbs print their answers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, TextIO

import typer

from node.home import Home, home_at
from protocol.errors import ConfigurationError

PeerOption = Annotated[
    list[str] | None,
    typer.Option(metavar="ADDRESS", help="The address of a peer to connect to: /ip4/…/tcp/…/p2p/…. Repeatable."),
]
JoinOption = Annotated[
    str | None,
    typer.Option(
        "--join",
        metavar="INVITE",
        help="Join a private cluster by an invite, starling://…, by a file that holds one, or by a code that was read "
        "out, CODE@ADDRESS; needed at the first start only. Default: $STARLING_JOIN.",
    ),
]
ListOption = Annotated[
    list[str] | None,
    typer.Option(
        "--list",
        metavar="FILE-OR-URL",
        help="A signed list of swarms: a file, or a URL (https, http). It is kept. Repeatable.",
    ),
]
JsonEventsOption = Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON for programs.")]


def keys_that_begin(incomplete: str) -> list[str]:
    """Returns the keys of the configuration that complete a ``--set``, each with its equals sign, for the shell."""
    from node.configuration.sources import known_keys  # at a Tab, and not at every start of the command

    return [f"{key}=" for key in known_keys() if key.startswith(incomplete)]


HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="DIRECTORY",
        help="The node's data directory. Default: $STARLING_HOME, otherwise ~/.local/share/starling.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
CheckpointOption = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="best|last|N|PATH",
        help="A checkpoint: the best by evaluation, the newest in --home (default), a round's number, or a folder.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=keys_that_begin,
        help="Set a key of the configuration, such as learner.own_groups=16. Repeatable. See: starling config show.",
    ),
]


def home_of(given: Path | None) -> Home:
    """Returns the data directory that a verb is for."""
    return home_at(given, os.environ)


def print_answer(answer: object, as_json: bool, lines: Callable[[], Iterable[str]], out: TextIO | None = None) -> None:
    """Prints an answer as JSON for programs, and otherwise as lines for people."""
    import msgspec

    for line in [msgspec.json.encode(answer)] if as_json else lines():
        typer.echo(line, file=out)


def set_compute_defaults() -> None:
    """Sets the variables that torch reads when it is imported, for a verb that computes."""
    from node.compute_environment import COMPUTE_DEFAULTS

    for variable, value in COMPUTE_DEFAULTS.items():
        os.environ.setdefault(variable, value)


def shown_width(out: TextIO) -> int | None:
    """Returns the characters of a line of the terminal that ``out`` is; None for a file or a pipe."""
    return shutil.get_terminal_size().columns if out.isatty() else None


def assignments(texts: list[str] | None) -> dict[str, str]:
    """Returns ``--set`` texts by dotted key. Raises ``ConfigurationError`` for a text without an equals sign."""
    flags: dict[str, str] = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigurationError(f"--set {text} has no value: write --set {key}=VALUE")
        flags[key.strip()] = value
    return flags
