"""``starling down``: stops the node in order."""

from __future__ import annotations

import os
import signal
import time
from typing import Annotated

import typer

from node.cli.options import HomeOption, home_of
from node.home import Home, holder_of, is_locked
from protocol.errors import DeadlineError, UnreachableError

POLL_SECONDS = 0.1
SILENT_SECONDS = 10.0


def down(
    home: HomeOption = None,
    wait_seconds: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", help="How long to wait until the node has stopped.")
    ] = 330.0,
) -> None:
    """Stop the node: it finishes its step, checkpoints, and says goodbye to its peers.

    Example: starling down --wait 60
    """

    where = home_of(home)
    began = time.monotonic()
    asked = _ask(where, 0.0)
    while is_locked(where):
        waited_seconds = time.monotonic() - began
        if waited_seconds > wait_seconds:
            raise DeadlineError(
                f"the node in {where.path} still runs after {wait_seconds:g} s: see starling logs --of learner"
            )
        time.sleep(POLL_SECONDS)
        asked = asked or _ask(where, waited_seconds)
    typer.echo("The node has stopped.")


def _ask(where: Home, waited_seconds: float) -> bool:
    """Returns whether the node was asked to stop. Raises ``UnreachableError`` where there was none from the start.

    A node that starts opens its socket within seconds; one that does not answer after ``SILENT_SECONDS`` gets a signal.
    """
    from node.api.node_client import ask_stop
    from node.relay.asking import ask_relay_to_end

    try:
        ask_stop(where)
    except UnreachableError:
        if not waited_seconds:
            raise
        return True  # it has ended
    except DeadlineError:
        if ask_relay_to_end(where):
            return True
        holder = holder_of(where)
        if holder is None or holder.supervisor is None:
            typer.echo("The node is stopping already.")
            return True
        if waited_seconds < SILENT_SECONDS:
            return False
        typer.echo(f"The node does not answer: process {holder.supervisor} is asked to stop by SIGTERM.")
        os.kill(holder.supervisor, signal.SIGTERM)
    return True
