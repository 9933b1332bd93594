"""``starling down``: stops the node in order."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from node.cli.options import HomeOption

POLL_SECONDS = 0.1


def down(
    home: HomeOption = None,
    wait_seconds: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", help="How long to wait until the node has stopped.")
    ] = 330.0,
) -> None:
    """Stop the node: it finishes its step, checkpoints, and says goodbye to its peers.

    Example: starling down --wait 60
    """
    from node.api.node_client import ask_stop
    from node.home import home_at, is_locked
    from protocol.errors import UnreachableError

    where = home_at(home, os.environ)
    try:
        ask_stop(where)
    except UnreachableError:
        if not is_locked(where):
            raise
        typer.echo("The node is stopping already.")
    deadline = time.monotonic() + wait_seconds
    while is_locked(where):
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"the node in {where.path} still runs after {wait_seconds:g} s: see its logs/learner.log"
            )
        time.sleep(POLL_SECONDS)
    typer.echo("The node has stopped.")
