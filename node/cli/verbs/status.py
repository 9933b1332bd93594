"""``starling status``: what the node does now."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import HomeOption, JsonOption
from swarm.exit_codes import ExitCode

if TYPE_CHECKING:
    from node.home import Home

CheckOption = Annotated[
    bool, typer.Option("--check", help="Print only whether the node is healthy; exit with code 1 where it is not.")
]


def status(home: HomeOption = None, as_json: JsonOption = False, check: CheckOption = False) -> None:
    """Show what the node does: round, rewards, donors, peers, addresses, faults. Of a relay: whom it relays for; of a
    machine that is lent: to whom.

    Example: starling status --check
    """
    from node.api.node_client import ask_status
    from node.home import home_at
    from protocol.errors import DeadlineError

    where = home_at(home, os.environ)
    try:
        answer = ask_status(where)
    except DeadlineError:
        if not _shown_relay(where, as_json=as_json, check=check):
            raise
        return
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


def _shown_relay(home: Home, *, as_json: bool, check: bool) -> bool:
    """Shows the relay or the donor that runs in ``home``, if one does."""
    import msgspec

    from node.lending.lending_output import lender_lines
    from node.relay.asking import relay_lines, relay_status

    status = relay_status(home)
    if status is None:
        return False
    if check:
        typer.echo(f"healthy: {'relay' if status.lending is None else 'donor'}")
    elif as_json:
        typer.echo(msgspec.json.encode(status))
    else:
        for line in relay_lines(status) if status.lending is None else lender_lines(status, status.lending):
            typer.echo(line)
    return True
