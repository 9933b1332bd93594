"""``starling status``: what the node does now."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from node.cli.options import HomeOption, JsonOption
from swarm.exit_codes import ExitCode

CheckOption = Annotated[
    bool, typer.Option("--check", help="Print only whether the node is healthy; exit with code 1 where it is not.")
]


def status(home: HomeOption = None, as_json: JsonOption = False, check: CheckOption = False) -> None:
    """Show what the node does: round, rewards, peers, addresses, faults.

    Example: starling status --check
    """
    from node.api.node_client import ask_status
    from node.home import home_at

    answer = ask_status(home_at(home, os.environ))
    if check:
        from node.api.answers import health_of

        health = health_of(answer)
        typer.echo(f"healthy: {health.state}" if health.healthy else f"not healthy: {health.because}")
        raise typer.Exit(ExitCode.DONE if health.healthy else ExitCode.FAULT)
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode(answer))
        return
    from node.cli.wording import status_lines

    for line in status_lines(answer):
        typer.echo(line)
