"""``starling logs``: what the node has said, whether anybody was looking or not."""

from __future__ import annotations

from contextlib import closing
from enum import StrEnum
from typing import Annotated

import typer

from node.cli.options import HomeOption, home_of
from protocol.errors import StorageError

POLL_SECONDS = 0.3


class Process(StrEnum):
    NODE = "node"
    LEARNER = "learner"
    SWARM = "swarm"


FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Show new lines as they come, until Ctrl-C.")]
LinesOption = Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines to show.")]
ProcessOption = Annotated[
    Process,
    typer.Option("--of", help="node: what starling up shows. learner, swarm: the full logs of its two processes."),
]


def logs(
    home: HomeOption = None, follow: FollowOption = False, lines: LinesOption = 50, of: ProcessOption = Process.NODE
) -> None:
    """Show the node's log, from its data directory. The node may be running or not.

    A log is bounded: its older half is kept beside it and dropped when the newer one is full.

    Examples:

    starling logs -f

    starling logs -n 200 --of learner
    """
    import time

    from node.cli.log_lines import LogFollower, last_lines

    where = home_of(home)
    path = where.log(of)
    if not follow and not path.exists():
        raise StorageError(
            f"there is no {path}: no node has run in {where.path} yet; start one with starling up, or name its data "
            "directory with --home or STARLING_HOME"
        )
    with closing(LogFollower(path)) as follower:  # before the last lines are read, so that none is missed
        for line in last_lines(path, lines, end=follower.position):
            typer.echo(line)
        while follow:
            for line in follower.new_lines():
                typer.echo(line)
            time.sleep(POLL_SECONDS)
