"""``starling version``."""

from __future__ import annotations

import typer

from node.cli.options import JsonOption


def version(as_json: JsonOption = False) -> None:
    """Print the versions of starling, its protocol, and what it computes with."""
    found = versions()
    if as_json:
        import json

        typer.echo(json.dumps(found))
        return
    for name, number in found.items():
        typer.echo(f"{name} {number}")


def versions() -> dict[str, str]:
    """By name."""
    import platform
    from importlib import metadata

    from node.version import VERSION
    from protocol.limits import PROTOCOL_MAJOR, PROTOCOL_MINOR

    return {
        "starling": VERSION,
        "protocol": f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}",
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "transformers", "libp2p")},
    }
