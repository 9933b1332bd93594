"""``starling status``: what the node is doing now."""

from __future__ import annotations

import os

import typer

from node.cli.options import HomeOption, JsonOption


def status(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show what the node is doing: round, rewards, peers, addresses, faults."""
    from node.api.client import ask_status
    from node.home import home_at

    answer = ask_status(home_at(home, os.environ))
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode(answer))
        return
    from node.cli.wording import status_lines

    for line in status_lines(answer):
        typer.echo(line)
