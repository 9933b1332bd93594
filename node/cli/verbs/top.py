"""``starling top``: rewards, the node, its peers, the swarm and its rollouts, live in the terminal."""

from __future__ import annotations

import sys
import time

import typer

from node.cli.options import HomeOption, home_of
from swarm.exit_codes import ExitCode

NO_TERMINAL = "starling: top needs a terminal; without one, use starling status or starling peers"


def top(home: HomeOption = None) -> None:
    """Watch a running node: what it learnt and from whom, what it does, its peers, the swarm, why rollouts were not
    used. Keys: 1 to 5, ?, q.

    Example: starling top --home /data/node

    On another machine: ssh -t HOST starling top
    """
    from node.api.node_client import ask_status

    chosen = home_of(home)
    status = ask_status(chosen)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):  # Textual reads from one and draws on the other
        typer.echo(NO_TERMINAL, err=True)
        raise typer.Exit(ExitCode.USAGE)
    from node.top.terminal_app import Top
    from node.top.watch import Seen, Watch

    Top(Watch(chosen, Seen(status, time.time()), time.time)).run()
