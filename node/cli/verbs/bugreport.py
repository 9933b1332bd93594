"""``starling bugreport``: one file to attach to a report of a fault."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import HomeOption, home_of

FileArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FILE]", help="The file to write. Default: starling-bugreport-<time>.txt in the current directory."
    ),
]


def bugreport(file: FileArgument = None, home: HomeOption = None) -> None:
    """Write one text file to attach to a report of a fault. The node may be running or not.

    The file holds versions, the findings of doctor, the configuration, status, peers, the last events and the last
    lines of the logs. It holds no key, token or invite, but it does hold the names and addresses of this node and its
    peers: read it before you share it.

    Example: starling bugreport report.txt
    """
    import time

    from node.cli.bugreport_text import CONTENTS, compose_bugreport, write_bugreport

    now_seconds = time.time()
    path = file or Path(time.strftime("starling-bugreport-%Y%m%d-%H%M%S.txt", time.gmtime(now_seconds)))
    write_bugreport(compose_bugreport(home_of(home), os.environ, now_seconds), path)
    typer.echo(f"Written: {path.absolute()}\n{CONTENTS}")
