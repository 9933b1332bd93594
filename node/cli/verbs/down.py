"""``starling down``: stops the node in order."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import HomeOption, home_of
from node.home import Home, holder_of, is_locked
from protocol.errors import DeadlineError, TransportError, UnreachableError
from swarm.exit_codes import ExitCode

if TYPE_CHECKING:
    from node.events import NotSaved

POLL_SECONDS = 0.1
SILENT_SECONDS = 10.0
PROGRESS_SECONDS = 2.0  # after which, and how often, a person is told what is waited for


def down(
    home: HomeOption = None,
    wait_seconds: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", help="How long to wait until the node has stopped.")
    ] = 330.0,
) -> None:
    """Stop the node: it finishes its step, checkpoints, and says goodbye to its peers.

    The exit code is 74 where the last rounds could not be saved.

    Example: starling down --wait 60
    """

    where = home_of(home)
    began = time.monotonic()
    progress = _Progress(where)
    asked = _ask(where, 0.0)
    while is_locked(where):
        waited_seconds = time.monotonic() - began
        if waited_seconds > wait_seconds:
            raise DeadlineError(
                f"the node in {where.path} still runs after {wait_seconds:g} s: see starling logs --of learner"
            )
        time.sleep(POLL_SECONDS)
        asked = asked or _ask(where, waited_seconds)
        progress.tell(waited_seconds)
    lost = progress.lost()
    typer.echo("The node has stopped." if lost is None else f"The node has stopped: {lost}")
    if lost is not None:
        raise typer.Exit(ExitCode.NOT_SAVED)


class _Progress:
    """What a person should know of a node that is ending: what it waits for, and what it could not save."""

    def __init__(self, where: Home) -> None:
        self._where, self._told, self._told_seconds = where, "", 0.0
        self._not_saved: NotSaved | None = None
        self._look()

    def _look(self) -> None:
        from node.api.node_client import ask_status

        with suppress(TransportError):  # it starts, it has ended, or a relay runs here
            self._not_saved = ask_status(self._where).not_saved

    def tell(self, waited_seconds: float) -> None:
        """Says, to standard error, what the node waits for, each thing once."""
        from node.api.answers import not_saved_line

        if waited_seconds < self._told_seconds + PROGRESS_SECONDS:
            return
        self._told_seconds = waited_seconds
        self._look()
        line = "It finishes its step and checkpoints." if self._not_saved is None else not_saved_line(self._not_saved)
        if line != self._told:
            typer.echo(line, err=True)
            self._told = line

    def lost(self) -> str | None:
        """Returns what was never saved, once the node has ended."""
        from node.api.answers import lost_line
        from node.checkpoints.checkpoint_files import round_of, rounds

        unsaved = self._not_saved
        saved_round = max(map(round_of, rounds(self._where.checkpoints)), default=0)
        return None if unsaved is None or saved_round >= unsaved.round else lost_line(unsaved)


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
