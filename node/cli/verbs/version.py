"""``starling version``: the versions of starling, its protocol and its libraries."""

from __future__ import annotations

from typing import Annotated

import typer

from node.cli.options import JsonOption, print_answer
from node.version import VERSION


def print_version(asked: bool) -> None:
    """Prints starling's own version and ends the command, if ``--version`` was given."""
    if asked:
        typer.echo(f"starling {VERSION}")
        raise typer.Exit


def before_any_verb(
    _: Annotated[
        bool, typer.Option("--version", "-V", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Takes the options that need no verb."""


def version(as_json: JsonOption = False) -> None:
    """Print the versions of starling, its protocol, Python, and the libraries that it computes and connects with.

    Example: starling version --json
    """
    found = versions()
    print_answer(found, as_json, lambda: (f"{name} {number}" for name, number in found.items()))


def versions() -> dict[str, str]:
    """Returns each version by name."""
    import platform
    from importlib import metadata

    from protocol.limits import PROTOCOL_MAJOR, PROTOCOL_MINOR

    return {
        "starling": VERSION,
        "protocol": f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}",
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "transformers", "libp2p")},
    }
