"""``starling status``: what the node does now."""

from __future__ import annotations

from typing import Annotated

import typer

from node.cli.options import HomeOption, JsonOption, home_of, print_answer
from node.home import Home
from protocol.errors import DeadlineError
from swarm.exit_codes import ExitCode

CheckOption = Annotated[
    bool, typer.Option("--check", help="Print only whether the node is healthy; exit with code 1 where it is not.")
]


def status(home: HomeOption = None, as_json: JsonOption = False, check: CheckOption = False) -> None:
    """Show what the node does: round, rewards, donors, peers, addresses, faults. A relay shows the peers that it relays
    for, a lent machine the node that uses it.

    Example: starling status --check
    """
    from node.api.node_client import ask_samples, ask_status
    from node.cli.wording import sample_lines, status_lines

    where = home_of(home)
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
    shown = [] if as_json or answer.nothing_learnt is None else sample_lines(ask_samples(where))
    print_answer(answer, as_json, lambda: [*status_lines(answer), *shown])


def _shown_relay(home: Home, *, as_json: bool, check: bool) -> bool:
    """Shows the relay or the donor that runs in ``home``, if one does."""
    from node.lending.lending_output import lender_lines
    from node.relay.asking import relay_lines, relay_status

    status = relay_status(home)
    if status is None:
        return False
    lending = status.lending
    if check:
        typer.echo(f"healthy: {'relay' if lending is None else 'donor'}")
    else:
        print_answer(status, as_json, lambda: relay_lines(status) if lending is None else lender_lines(status, lending))
    return True
